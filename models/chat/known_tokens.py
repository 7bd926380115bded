"""What may enter a chat engine: tokens that its network has, whatever its tokenizer has beside them."""

from typing import Any

from models.vocabulary import check_known
from registry.errors import BadRequest


class KnownTokens:
    """vLLM takes what the tokenizer has as known, too: images have tokens there for which there is no row."""

    def __init__(self, engine: Any) -> None:
        self._tokenizer: Any = engine.get_tokenizer()
        self._tokens = int(engine.model_config.get_vocab_size())
        self._has_more = self._tokenizer.max_token_id >= self._tokens
        end_tokens = engine.model_config.try_get_generation_config().get("eos_token_id")
        ends = [self._tokenizer.eos_token_id, *(end_tokens if isinstance(end_tokens, list) else [end_tokens])]
        self._end = max((one for one in ends if isinstance(one, int)), default=0)

    def check(self, prompt: Any, params: Any) -> None:
        """Raises BadRequest."""
        if self._end >= self._tokens and bool(getattr(params, "min_tokens", None)):
            raise BadRequest(
                f"This model's end has token {self._end}, which its network of {self._tokens} tokens does not have: "
                "its answers end by max_tokens or stop only, and min_tokens cannot be asked for.",
                param="min_tokens",
            )
        if self._has_more and isinstance(prompt, dict) and prompt.get("type") == "token":
            ids = prompt["prompt_token_ids"]
            word = self._tokenizer.convert_ids_to_tokens([max(ids, default=0)])[0]
            check_known(ids, self._tokens, str(word or ""))
