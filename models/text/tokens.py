"""Texts to token ids with a model's own fast tokenizer: exact counts before anything runs, and no silent cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from registry.errors import BadRequest, ContextLengthExceeded, EngineFailed


@dataclass(frozen=True, slots=True)
class Template:
    """Special tokens around one sequence, as the tokenizer's post-processor puts them."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return len(self.before) + len(self.after)


class Tokens:
    """A Hugging Face tokenizer without padding and truncation.

    Args:
        tokenizer: the model's own; it must be a fast one. Its padding and truncation are switched off for good.
        vocabulary: number of rows of the model's token embeddings.
        context: tokens that the model takes, special tokens included.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, context: int) -> None:
        self._tokenizer: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._tokenizer is None:
            raise EngineFailed(f"{type(tokenizer).__name__} is a slow tokenizer: convert it to tokenizer.json.")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.context = context
        self.vocabulary = vocabulary
        self.pad_id = int(tokenizer.pad_token_id or 0)
        self.pad_type_id = int(getattr(tokenizer, "pad_token_type_id", 0) or 0)
        self.pad_left = tokenizer.padding_side == "left"
        self.wants_types = "token_type_ids" in tokenizer.model_input_names
        self.special_ids = frozenset(tokenizer.all_special_ids)
        self.template = self._template()

    def _template(self) -> Template:
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a").ids
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return Template(tuple(whole[:start]), tuple(whole[start + len(plain) :]))
        raise EngineFailed("this tokenizer changes a text when it adds special tokens: it cannot be served.")

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids without special tokens, text by text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def inputs(self, inputs: Sequence[str | list[int]], prompt: str, truncate: bool) -> list[list[int]]:
        """Ids with special tokens and prompt of each input, at most `context` of them.

        Token lists may hold the special tokens already, as the model's tokenizer puts them, or leave them out.

        Raises:
            BadRequest: an input is empty, or an id is not in the vocabulary.
            ContextLengthExceeded: an input is too long and `truncate` is False.
        """
        for index, given in enumerate(inputs):
            if not given:
                raise BadRequest(f"Input {index} is empty: send at least one character or token.", param="input")
        texts = [prompt + given for given in inputs if isinstance(given, str)]
        encoded = iter(self.plain(texts) if texts else ())
        prompt_ids = self.plain([prompt])[0] if prompt and len(texts) < len(inputs) else []
        result = []
        for index, given in enumerate(inputs):
            ids = next(encoded) if isinstance(given, str) else [*prompt_ids, *self._checked(given, index)]
            room = self.context - self.template.tokens
            if len(ids) > room:
                if not truncate:
                    raise ContextLengthExceeded(
                        f"This model takes {self.context} tokens, but input {index} has "
                        f"{len(ids) + self.template.tokens}. Shorten it, or ask for truncation.",
                        param="input",
                    )
                ids = ids[:room]
            result.append([*self.template.before, *ids, *self.template.after])
        return result

    def _checked(self, ids: list[int], index: int) -> list[int]:
        """Ids of a token list without the template's special tokens."""
        if wrong := [number for number in ids if not 0 <= number < self.vocabulary]:
            raise BadRequest(
                f"Input {index} has token {wrong[0]}, but this model's ids run from 0 to {self.vocabulary - 1}. "
                "Token lists must come from this model's own tokenizer; send text if you have another's.",
                param="input",
            )
        before, after = list(self.template.before), list(self.template.after)
        whole = len(ids) >= self.template.tokens and ids[: len(before)] == before
        if whole and (not after or ids[-len(after) :] == after):
            return ids[len(before) : len(ids) - len(after)]
        return ids
