"""Readers of an answer, in pieces of any size: its reasoning, its calls, and all other text. See `parser.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from models.chat.vllm.answers.call_syntax import CallScanner, CallSyntax, Reading, overlap


class ToolCall(NamedTuple):
    """A complete call. id: from the parser, if it has one."""

    name: str
    arguments: str
    id: str | None


class Parts(NamedTuple):
    """The result of parsing a piece of an answer."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class ReasoningSplitter:
    """Splits an answer into reasoning and the rest, using vLLM's own streaming parser."""

    def __init__(self, parser: Any) -> None:
        """parser: vLLM's parser without calls."""
        self._parser = parser
        half = parser.reasoning_parser
        self._tokenizer = None if half.engine_based_streaming else parser.model_tokenizer
        marks = (getattr(half, name, None) for name in ("reasoning_start_str", "reasoning_end_str"))
        self._pieces = TextPieces([mark for mark in marks if mark])
        self._broken = False
        self._owed = ""
        """Text that the parser has received but not returned yet."""

    def feed(self, text: str, request: Any, prompt: list[int] | None, *, finished: bool) -> Parts:
        reasoning, content = "", ""
        pieces = self._pieces.cut(text, finished=finished)
        for number, piece in enumerate(pieces or ([""] if finished else [])):
            part = self._feed(piece, request, prompt, finished=finished and number >= len(pieces) - 1)
            reasoning += part.reasoning
            content += part.content
        return Parts(reasoning, content)

    def _feed(self, piece: str, request: Any, prompt: list[int] | None, *, finished: bool) -> Parts:
        if self._broken or self._parser._stream_state.reasoning_ended:
            return Parts(content=piece)
        try:
            tokens = _encode(self._tokenizer, piece) if self._tokenizer is not None else []
            delta = self._parser.parse_delta(piece, tokens, request, prompt, finished=finished)
        except Exception:
            self._broken = True
            return Parts(content=self._owed + piece)
        parts = Parts(delta.reasoning or "", delta.content or "") if delta is not None else Parts()
        return self._with_lost(piece, parts, finished=finished)

    def _with_lost(self, piece: str, parts: Parts, *, finished: bool) -> Parts:
        """Add text that the parser has dropped, except markers. A parser without markers has its own language."""
        if not self._pieces.marks:
            return parts
        self._owed += piece
        reasoning, content = self._with_skipped(parts.reasoning), self._with_skipped(parts.content)
        ended = self._parser._stream_state.reasoning_ended
        if not (finished or ended):
            return Parts(reasoning, content)
        rest, self._owed = self._lost(self._owed), ""
        return Parts(reasoning, content + rest) if ended or content else Parts(reasoning + rest, content)

    def _with_skipped(self, text: str) -> str:
        """Return a text from the parser, preceded by what the parser has skipped."""
        at = self._owed.find(text)
        if at < 0:  # a different text
            self._owed = ""
            return text
        skipped, self._owed = self._owed[:at], self._owed[at + len(text) :]
        return self._lost(skipped) + text

    def _lost(self, text: str) -> str:
        lost = self._pieces.without_marks(text)
        return lost if lost.strip() else ""


class TextPieces:
    """Splits a text that arrives in pieces of any size, so that each marker is a separate piece."""

    def __init__(self, marks: list[str], *, letters: bool = False) -> None:
        """letters: whether to split the text between markers into characters."""
        self.marks, self._letters = marks, letters
        self._pattern = re.compile(f"({'|'.join(map(re.escape, sorted(marks, key=len, reverse=True)))})")
        self._held = ""
        """The end of the text, if it may be the beginning of a marker."""

    def cut(self, text: str, *, finished: bool) -> list[str]:
        text, self._held = self._held + text, ""
        if self.marks and not finished:
            held = max(overlap(text, mark) for mark in self.marks)
            text, self._held = text[: len(text) - held], text[len(text) - held :]
        pieces = self._pattern.split(text) if self.marks else [text]
        if self._letters:
            return [part for piece in pieces for part in ([piece] if piece in self.marks else piece)]
        return [piece for piece in pieces if piece]

    def without_marks(self, text: str) -> str:
        return self._pattern.sub("", text)


def _encode(tokenizer: Any, text: str) -> list[int]:
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


MakeCall = Callable[[Any, Any], ToolCall | None]
"""Creates a call from a name and arguments; None if it is not complete."""
ReadBlock = Callable[[str], list[ToolCall | None]]
"""Returns the calls in a block of text, None for each that is not complete; empty if it has none."""


class ContentReader(Protocol):
    def feed(self, text: str, *, finished: bool) -> Parts: ...


class CallReader:
    """Extracts calls from the content of an answer. read: gets the blocks that have one of the syntaxes."""

    def __init__(self, read: ReadBlock, syntaxes: tuple[CallSyntax, ...]) -> None:
        self._read = read
        self._scanner = CallScanner(syntaxes, self._accept)
        self._calls: list[ToolCall] = []
        self._any = False
        self._blank: str | None = ""
        """White space since the last block or the beginning; None if other text has followed."""

    def feed(self, text: str, *, finished: bool) -> Parts:
        content = "".join(self._after_blank(piece) for piece in self._scanner.feed(text, finished=finished))
        if finished and not self._any:  # not white space around calls
            content += self._blank or ""
        calls, self._calls = tuple(self._calls), []
        return Parts(content=content, calls=calls)

    def _after_blank(self, text: str) -> str:
        if self._blank is not None:
            text, self._blank = self._blank + text, None
            if not text or text.isspace():
                text, self._blank = "", text
        return text

    def _accept(self, readings: tuple[Reading, ...]) -> int:
        for text, length in readings:
            calls = self._read(text)
            whole = [call for call in calls if call is not None]
            if whole and len(whole) == len(calls):
                self._calls += whole
                self._any, self._blank = True, ""
                return length
        return 0


def read_required(text: str, make: MakeCall) -> list[ToolCall | None]:
    """Return the calls in vLLM's own language for `tool_choice: required`; see `ReadBlock`."""
    try:
        return [make(item["name"], json.dumps(item["parameters"], ensure_ascii=False)) for item in json.loads(text)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


class NamedReader:
    """Uses the whole content of an answer as the arguments of the tool named in the request."""

    def __init__(self, make: MakeCall, name: str) -> None:
        self._make, self._name, self._text = make, name, ""

    def feed(self, text: str, *, finished: bool) -> Parts:
        self._text += text
        if not finished:
            return Parts()
        call = self._make(self._name, self._text) if self._text.strip() else None
        return Parts(calls=(call,)) if call is not None else Parts(content=self._text)


class AnswerReader:
    """Reads one answer in pieces of any size."""

    def __init__(
        self, reasoning: ReasoningSplitter | None, calls: ContentReader | None, request: Any, prompt: list[int] | None
    ) -> None:
        """calls: None if the content is only text."""
        self._reasoning, self._calls = reasoning, calls
        self._request, self._prompt = request, prompt
        self._hidden = not request.include_reasoning
        if self._hidden:  # the splitter must see it
            self._request = request.model_copy(update={"include_reasoning": True})

    def feed(self, text: str, prompt: list[int] | None, *, finished: bool) -> Parts:
        reasoning, content = "", text
        if self._reasoning is not None:
            self._prompt = prompt if prompt is not None else self._prompt
            reasoning, content, _ = self._reasoning.feed(text, self._request, self._prompt, finished=finished)
            reasoning = "" if self._hidden else reasoning
        if self._calls is None:
            return Parts(reasoning, content)
        return _joined(Parts(reasoning), self._calls.feed(content, finished=finished))


class LetterReader:
    """Reads one answer in a parser's own language: character by character, and at the end once more as a whole.

    Additional text from the second reading is added at the end, as are all calls.
    """

    def __init__(self, make: Callable[[], Any], request: Any, prompt: list[int] | None) -> None:
        """make: creates vLLM's own parser."""
        self._make, self._request, self._prompt = make, request, prompt
        self._parser = make()
        self._tokenizer = self._parser.model_tokenizer
        self._pieces = TextPieces([*self._tokenizer.get_added_vocab()], letters=True)
        self._text = ""
        self._given = Parts()

    def feed(self, text: str, prompt: list[int] | None, *, finished: bool) -> Parts:
        self._text += text
        self._prompt = prompt if prompt is not None else self._prompt
        parts = Parts()
        for piece in [*self._pieces.cut(text, finished=finished), *([""] if finished else [])]:
            parts = _joined(parts, self._feed(piece, finished=finished and not piece))
        self._given = _joined(self._given, parts)
        return _joined(parts, self._rest()) if finished else parts

    def _feed(self, piece: str, *, finished: bool) -> Parts:
        try:
            tokens = _encode(self._tokenizer, piece)
            delta = self._parser.parse_delta(piece, tokens, self._request, self._prompt, finished=finished)
        except Exception:
            return Parts()  # the second reading may return it
        return Parts(delta.reasoning or "", delta.content or "") if delta is not None else Parts()

    def _rest(self) -> Parts:
        parser = self._make()
        try:
            parser.set_prompt_token_ids(self._prompt or [])
            tokens = _encode(self._tokenizer, self._text)
            reasoning, content, calls = parser.parse(self._text, self._request, True, tokens)
        except Exception:
            return Parts() if any(self._given) else Parts(content=self._text)
        whole = tuple(
            ToolCall(call.name, call.arguments or "{}", call.id) for call in calls or () if is_whole(call.arguments)
        )
        reasoning, content, given = reasoning or "", content or "", self._given
        if not (reasoning.startswith(given.reasoning) and content.startswith(given.content)):
            return Parts(calls=whole)
        more = reasoning[len(given.reasoning) :] if self._request.include_reasoning else ""
        return Parts(more, content[len(given.content) :], whole)


def _joined(one: Parts, other: Parts) -> Parts:
    return Parts(one.reasoning + other.reasoning, one.content + other.content, one.calls + other.calls)


def is_whole(arguments: str) -> bool:
    """Return whether a call's arguments are a JSON object; those of a tool without parameters may be empty."""
    try:
        return isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        return False
