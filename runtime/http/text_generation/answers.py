"""Converts vLLM's completions to TGI's answers and events.

As in vLLM, a token's logprob is the model's own, before temperature, penalties and sampling cuts. The fields `skipped`,
`skipped_tokens` and `prompt_tokens` are required by LoRAX's clients.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from registry.base.json import NOT_JSON
from registry.errors import BadRequest, EngineFailed, RoundhouseError, by_status
from runtime.http.chat.answers import EngineError
from runtime.http.text_generation.bodies import Generation

BROKEN = "\ufffd"
"""The text of a token that ends inside a character."""
SLACK = 8
"""Most characters that tokens which end inside a character can contribute."""


# --- vLLM's ----------------------------------------------------------------------------------------------------------
class _Logprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []


class CompletionChoice(msgspec.Struct):
    text: str = ""
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class EngineCompletion(msgspec.Struct):
    """A complete answer or one event of a stream."""

    choices: list[CompletionChoice] = []
    error: EngineError | None = None


# --- TGI's -----------------------------------------------------------------------------------------------------------
class PrefillToken(msgspec.Struct):
    id: int
    text: str
    logprob: float | None


class GeneratedToken(msgspec.Struct):
    id: int
    text: str
    logprob: float
    special: bool
    skipped: bool = False


class GeneratedDetails(msgspec.Struct):
    finish_reason: str
    generated_tokens: int
    seed: int | None
    prompt_tokens: int
    prefill: list[PrefillToken]
    tokens: list[GeneratedToken]
    skipped_tokens: int = 0


class StreamedDetails(msgspec.Struct):
    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int
    prompt_tokens: int


class GeneratedText(msgspec.Struct, omit_defaults=True):
    generated_text: str
    details: GeneratedDetails | None = None


class StreamedToken(msgspec.Struct):
    index: int
    token: GeneratedToken
    generated_text: str | None = None
    details: StreamedDetails | None = None


def whole_answer(request: Generation, data: bytes) -> GeneratedText:
    """The answer to a request without streaming. Raises EngineFailed."""
    choice = _choice(data)
    if choice is None:
        raise EngineFailed("The engine's answer holds no text.")
    reason = _finish(choice)
    text = request.inputs + choice.text if request.full_text else choice.text
    if not request.parameters.wants_details:
        return GeneratedText(text)
    prompt = choice.prompt_token_ids or []
    before = len(prompt) if request.prefill else 0
    tokens = list(_tokens(choice, before))
    details = GeneratedDetails(
        finish_reason=reason,
        generated_tokens=len(tokens),
        seed=request.seed,
        prompt_tokens=len(prompt),
        prefill=_prefill(choice, prompt) if request.prefill else [],
        tokens=tokens,
    )
    return GeneratedText(text, details)


class Stream:
    """Events of a stream, built from vLLM's. `finished`: whether the last one has arrived."""

    def __init__(self, request: Generation) -> None:
        self._request = request
        self._texts: list[str] = [request.inputs] if request.full_text else []
        self._prompt_tokens = 0
        self._index = 0
        self.finished = False

    def feed(self, data: bytes) -> list[StreamedToken]:
        """One event per token, the last with the whole text. Raises the engine's error."""
        try:
            choice = _choice(data)
        except EngineFailed:
            if self._index or not self._request.is_constrained:
                raise
            raise BadRequest(
                "No text satisfies the grammar of this request.",
                param="parameters.grammar",
                code="unsatisfiable_constraint",
            ) from None
        if choice is None or self.finished:
            return []
        if choice.prompt_token_ids:
            self._prompt_tokens = len(choice.prompt_token_ids)
        self._texts.append(choice.text)
        events = []
        for token in _tokens(choice, 0):
            self._index += 1
            events.append(StreamedToken(self._index, token))
        if choice.finish_reason is not None:
            self.finished = True
            reason = _finish(choice)
            if not events:  # the end arrived separately from the last token
                events = [StreamedToken(self._index, GeneratedToken(0, choice.text, 0.0, special=not choice.text))]
            events[-1].generated_text = "".join(self._texts)
            events[-1].details = self._details(reason)
        return events

    def _details(self, reason: str) -> StreamedDetails | None:
        if not self._request.parameters.details:
            return None
        return StreamedDetails(
            finish_reason=reason,
            generated_tokens=self._index,
            seed=self._request.seed,
            input_length=self._prompt_tokens,
            prompt_tokens=self._prompt_tokens,
        )


def _choice(data: bytes) -> CompletionChoice | None:
    try:
        answer = msgspec.json.decode(data, type=EngineCompletion)
    except NOT_JSON:
        raise EngineFailed("The engine's answer cannot be read.") from None
    if answer.error is not None:
        raise engine_error(answer.error.code if isinstance(answer.error.code, int) else 500, answer.error)
    return answer.choices[0] if answer.choices else None


NAMES = {
    "max_tokens": "max_new_tokens",
    "truncate_prompt_tokens": "truncate",
    "structured_outputs": "grammar",
    "prompt": "inputs",
}
"""Names of fields in vLLM's messages, with their names here."""
_NAMED = re.compile(rf"(?<![\w.])({'|'.join(NAMES)})(?=[=`'])")
_APPENDIX = re.compile(r" \(parameter=[^()]*\)$")


def engine_error(status: int, error: EngineError) -> RoundhouseError:
    """vLLM's error, with the field names of this dialect."""
    message = _NAMED.sub(lambda match: NAMES[match[1]], _APPENDIX.sub("", error.message))
    return by_status(status)(message, code=error.code if isinstance(error.code, str) else None)


def _finish(choice: CompletionChoice) -> str:
    """Raises EngineFailed for a finish reason other than TGI's three."""
    if choice.finish_reason == "length":
        return "length"
    if choice.finish_reason == "stop":
        return "stop_sequence" if isinstance(choice.stop_reason, str) else "eos_token"
    raise EngineFailed(f"The answer ended before it was complete: {choice.finish_reason}.")


def _prefill(choice: CompletionChoice, prompt: Sequence[int]) -> list[PrefillToken]:
    listed = choice.logprobs or _Logprobs()
    return [
        PrefillToken(id_, text, logprob)
        for id_, text, logprob in zip(prompt, listed.tokens, listed.token_logprobs, strict=False)
    ]


def _tokens(choice: CompletionChoice, before: int) -> Iterator[GeneratedToken]:
    """The tokens of a choice. `before`: number of its logprobs that belong to the prompt."""
    ids, listed = choice.token_ids or [], choice.logprobs or _Logprobs()
    names, logprobs = listed.tokens[before:], listed.token_logprobs[before:]
    if not len(ids) == len(names) == len(logprobs):
        raise EngineFailed("The engine's tokens and their logprobs do not go together.")
    for id_, (text, special), logprob in zip(ids, aligned(names, choice.text), logprobs, strict=True):
        yield GeneratedToken(id_, text, -9999.0 if logprob is None else logprob, special)


def aligned(names: Sequence[str], text: str) -> list[tuple[str, bool]]:
    """Each token's part of `text`, and whether the token is special and so not in the text.

    `names` are the tokens decoded one by one. The parts add up to `text` exactly; a special token keeps its name.
    """
    if len(names) == 1:
        return [(text, False)] if text or BROKEN in names[0] or not names[0] else [(names[0], True)]
    parts: list[tuple[str, bool]] = []
    at, waiting = 0, -1
    for name in names:
        if not name or BROKEN in name:
            parts.append(("", False))
            waiting = len(parts) - 1
            continue
        start = text.find(name, at, at + len(name) + (SLACK if waiting >= 0 else 1))
        if start < 0:
            rest = text[at:]
            cut = bool(rest) and name.lstrip().startswith(rest.lstrip())  # a stop sequence ended inside the token
            parts.append((rest, False) if cut else (name, True))
            at += len(rest) if cut else 0
            continue
        if waiting >= 0:
            parts[waiting] = (parts[waiting][0] + text[at:start], False)
            at = start
        parts.append((text[at : start + len(name)], False))
        at, waiting = start + len(name), -1
    if rest := text[at:]:
        last = next((index for index in reversed(range(len(parts))) if not parts[index][1]), len(parts) - 1)
        if last >= 0:
            parts[last] = (("" if parts[last][1] else parts[last][0]) + rest, False)
    return parts
