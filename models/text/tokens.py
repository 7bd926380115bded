"""Convert texts to token ids with a model's own tokenizer: exact counts, no silent cuts."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from models.vocabulary import check_known
from registry.errors import BadRequest, ContextLengthExceeded, EngineFailed

Going = Callable[[], None]
_Result = TypeVar("_Result")
DENSE, SPARSE = 16, 128
"""Characters read per token. Ordinary text has 3 to 5, so 16 show for nearly all texts whether they are too long. Only
white space or words of hundreds of letters have more than 128, and are not read beyond that."""
MARGIN = 1024
"""Characters before a cut in which tokens may differ from those of the whole text."""
PIECE = 1 << 16
"""Characters that are tokenised at once, in about 0.1 s."""
THREADS = 2
"""Requests with a text longer than PIECE that are tokenised at the same time. The library cannot be stopped within a
text, and uses about 240 bytes per character until it is done: 0.9 GiB for seconds for 4 MiB, which a context of 8,192
admits, even if the client has left. Other requests stop at most a PIECE after their client left, and do not wait for
these."""
_POOL = ThreadPoolExecutor(THREADS, "tokenise")


class Ids(NamedTuple):
    """An input. `types` are for pairs only; some poolings omit the first `prompt` tokens."""

    ids: list[int]
    types: list[int] | None = None
    prompt: int = 0
    is_cut: bool = False
    """Whether it was longer than the context, or its end was not read."""


def always() -> None:
    """Do nothing: the check of a request that cannot be abandoned."""


def check_characters(text: str, tokens: int, what: str, param: str) -> None:
    """Refuse a text that is certainly too long, before tokenising it."""
    if len(text) > SPARSE * tokens:
        raise ContextLengthExceeded(
            f"{what.capitalize()} has {len(text)} characters; this model takes at most {SPARSE * tokens}, whatever "
            "their tokens are. Shorten it, or ask for truncation.",
            param=param,
        )


async def while_awaited(work: Callable[[Going], _Result], longest: int) -> _Result:
    """Run `work` in a thread, with a `going` that raises once it is abandoned.

    Args:
        longest: characters of its longest text.
    """
    abandoned = threading.Event()

    def going() -> None:
        if abandoned.is_set():
            raise InterruptedError("the request was abandoned")

    try:
        pool = _POOL if longest > PIECE else None
        return await asyncio.get_running_loop().run_in_executor(pool, work, going)
    finally:
        abandoned.set()


def check_template(tokenizer: Any, vocabulary: int) -> None:
    """Raise EngineFailed if the tokenizer adds a token to texts that the network lacks."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and (largest := max(backend.encode("a", "a").ids, default=0)) >= vocabulary:
        raise EngineFailed(
            f"its tokenizer writes '{backend.id_to_token(largest)}' ({largest}) into every text, but its network has "
            f"{vocabulary} tokens, up to {vocabulary - 1}: the tokenizer is another model's, or has grown since"
        )


@dataclass(frozen=True, slots=True)
class Template:
    """Special tokens that the tokenizer's post-processor puts around one sequence."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return len(self.before) + len(self.after)


class Tokens:
    """A Hugging Face tokenizer without padding and truncation.

    Args:
        tokenizer: the model's own; must be a fast one. Its padding and truncation are turned off permanently.
        vocabulary: number of rows of the model's token embeddings.
        context: most tokens of an input, including special tokens.
        padding: the network's padding token, if that matters; default: the tokenizer's.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, context: int, padding: int | None = None) -> None:
        self._tokenizer: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._tokenizer is None:
            raise EngineFailed(f"{type(tokenizer).__name__} is a slow tokenizer: convert it to tokenizer.json.")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.context = context
        self.vocabulary = vocabulary
        self._has_more = max(self._tokenizer.get_vocab().values(), default=0) >= vocabulary  # ids may have gaps
        self.pad_id = int(tokenizer.pad_token_id or 0) if padding is None else padding
        self.pad_type_id = int(getattr(tokenizer, "pad_token_type_id", 0) or 0)
        self.pad_left = tokenizer.padding_side == "left"
        self.wants_types = "token_type_ids" in tokenizer.model_input_names
        self.template = self._template()

    def _template(self) -> Template:
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a").ids
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return Template(tuple(whole[:start]), tuple(whole[start + len(plain) :]))
        raise EngineFailed("this tokenizer changes a text when it adds special tokens: it cannot be served.")

    def plain(self, texts: Sequence[str], most: int | None = None, going: Going = always) -> list[list[int]]:
        """Return ids without special tokens, at most the first `most` of each text.

        With `most`, only the necessary part of a long text is tokenised; see SPARSE for texts with very few tokens.
        `going` is called every few milliseconds, and may raise.

        Raises BadRequest for a token that the network lacks.
        """
        result: list[list[int]] = []
        short: list[str] = []

        def flush() -> None:
            if short:
                going()
                encoded = self._tokenizer.encode_batch_fast(short, add_special_tokens=False)
                result.extend(encoding.ids[:most] for encoding in encoded)
                short.clear()

        size = 0
        for text in texts:
            if most is not None and len(text) > DENSE * most + MARGIN:
                flush()
                result.append(self._first(text, most, going))
                continue
            if size + len(text) > PIECE:
                flush()
                size = 0
            short.append(text)
            size += len(text)
        flush()
        for ids in result if self._has_more else ():
            check_known(ids, self.vocabulary, self._tokenizer.id_to_token(max(ids, default=0)))
        return result

    def _first(self, text: str, most: int, going: Going) -> list[int]:
        """Return the first `most` ids of a long text. A cut changes tokens only within MARGIN."""
        ids: list[int] = []
        for characters in (DENSE * most, SPARSE * most):
            going()
            part = text[: characters + MARGIN]
            encoding = self._tokenizer.encode(part, add_special_tokens=False)
            ids = encoding.ids
            if len(part) < len(text):
                ids = ids[: sum(end <= characters for _, end in encoding.offsets)]
            if len(ids) >= most:
                break
        return ids[:most]

    def inputs(
        self, inputs: Sequence[str | list[int]], prompt: str, truncate: bool, going: Going = always
    ) -> list[Ids]:
        """Return each input's ids with special tokens and prompt, at most `context` of them.

        Token lists may or may not contain the special tokens that the model's tokenizer would add.

        Raises:
            BadRequest: an input is empty or has no tokens, or an id is not in the vocabulary.
            ContextLengthExceeded: an input is too long and `truncate` is False.
        """
        for index, given in enumerate(inputs):
            if not given:
                raise BadRequest(f"Input {index} is empty: send at least one character or token.", param="input")
            if not truncate and isinstance(given, str):
                check_characters(given, self.context, f"input {index}", "input")
        room = self.context - self.template.tokens
        texts = [prompt + given for given in inputs if isinstance(given, str)]
        encoded = iter(self.plain(texts, room + 1 if truncate else None, going) if texts else ())  # 1 more shows a cut
        prompt_ids = self.plain([prompt])[0] if prompt and len(texts) < len(inputs) else []
        result = list[Ids]()
        for index, given in enumerate(inputs):
            ids = next(encoded) if isinstance(given, str) else [*prompt_ids, *self._checked(given, index)]
            if len(ids) > room and not truncate:
                raise ContextLengthExceeded(
                    f"This model takes {self.context} tokens, but input {index} has "
                    f"{len(ids) + self.template.tokens}. Shorten it, or ask for truncation.",
                    param="input",
                )
            whole = [*self.template.before, *ids[:room], *self.template.after]
            unread = truncate and isinstance(given, str) and len(prompt + given) > SPARSE * (room + 1) + MARGIN
            result.append(Ids(whole, is_cut=len(ids) > room or unread))
            if not whole:
                raise BadRequest(
                    f"Input {index} has no tokens: this model's tokenizer drops all of its content. Send other text.",
                    param="input",
                )
        return result

    def _checked(self, ids: list[int], index: int) -> list[int]:
        """Return the ids of a token list without the template's special tokens."""
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
