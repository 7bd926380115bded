"""Parsers that keep all of an answer: whole tool calls, and all other text as text.

vLLM parses a complete answer with other code than a stream, and both lose text: a call cut by the token limit, text
after a call, text that only looks like a call. Here both forms pass through the same reader, whose result depends
neither on the size of the pieces nor on the tokens: vLLM's reasoning parser, fed with markers as separate pieces, then
`CallScanner`. vLLM's tool parser gets only complete blocks. If a parser raises, the remaining text is content.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

from models.chat.vllm.answers import required_calls
from models.chat.vllm.answers.call_syntax import REQUIRED, SYNTAXES
from models.chat.vllm.answers.readers import (
    AnswerReader,
    CallReader,
    ContentReader,
    LetterReader,
    NamedReader,
    ReasoningSplitter,
    ToolCall,
    is_whole,
    read_required,
)

MOST_REQUIRED = 8
"""Maximum calls of an answer if `tool_choice` requires some and the model may write them as JSON."""


def _bound_calls(request: Any) -> None:
    """Bound the list of calls that a request requires, because a model without tool support would call forever."""
    outputs, text = getattr(request, "structured_outputs", None), getattr(request, "text", None)
    for schema in (getattr(outputs, "json", None), getattr(getattr(text, "format", None), "schema_", None)):
        if isinstance(schema, dict) and schema.get("type") == "array":
            schema.setdefault("maxItems", MOST_REQUIRED)


@cache
def _only(kind: Any, *, calls: bool) -> Any:
    """Return a parser class with only the calls or only the reasoning of another."""

    class HalfParser(import_module("vllm.parser.abstract_parser").DelegatingParser):  # type: ignore[misc]
        reasoning_parser_cls = None if calls else kind.reasoning_parser_cls
        tool_parser_cls = kind.tool_parser_cls if calls else None

    return HalfParser


def guarded(kind: Any) -> Any:
    """Return a parser class for a parser with its own language, which treats text as content if the parser raises."""
    delta_class: Any = import_module("vllm.entrypoints.generate.base.protocol").DeltaMessage

    class GuardedParser(kind):  # type: ignore[misc]
        broken = False

        def adjust_request(self, request: Any) -> Any:
            required_calls.enforce(self, request)
            return super().adjust_request(request)

        def parse(self, model_output: str, *arguments: Any, **named: Any) -> Any:
            try:
                return super().parse(model_output, *arguments, **named)
            except Exception:
                return None, model_output, None

        def parse_delta(self, delta_text: str, *arguments: Any, **named: Any) -> Any:
            if not self.broken:
                try:
                    return super().parse_delta(delta_text, *arguments, **named)
                except Exception:
                    self.broken = True
            return delta_class(content=delta_text) if delta_text else None

    return GuardedParser


def _has_own_language(kind: Any, tool_parser: str) -> bool:
    """Return whether a parser reads calls and other text together."""
    base = import_module("vllm.parser.abstract_parser").DelegatingParser
    if any(getattr(kind, name) is not getattr(base, name) for name in ("parse", "parse_delta", "_extract_tool_calls")):
        return True
    return kind.tool_parser_cls is not None and tool_parser not in SYNTAXES


def whole_answers(kind: Any, tool_parser: str) -> Any:
    """Return a parser class that loses nothing. tool_parser: its name; '' if it is in the recipe's own file."""
    if issubclass(kind, import_module("vllm.parser.harmony").HarmonyParser):
        return guarded(kind)
    own_language = _has_own_language(kind, tool_parser)
    protocol: Any = import_module("vllm.entrypoints.generate.base.protocol")
    make_id = import_module("vllm.renderers.chat_utils").make_tool_call_id

    class WholeAnswerParser(kind):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._made = arguments, named
            self._prompt: list[int] | None = None
            self._stream: AnswerReader | LetterReader | None = None
            self._streamed_calls = 0

        def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
            super().set_prompt_token_ids(prompt_token_ids)
            self._prompt = list(prompt_token_ids)

        def adjust_request(self, request: Any) -> Any:
            required_calls.enforce(self, request)
            request = super().adjust_request(request)
            if request.tool_choice == "required" and self.tool_parser and self.tool_parser.supports_required_and_named:
                _bound_calls(request)
            return request

        def _half(self, *, calls: bool) -> Any:
            return _only(kind, calls=calls)(*self._made[0], **self._made[1])

        def _read_block(self, request: Any, text: str) -> list[ToolCall | None]:
            """Return the calls in a block from vLLM's own parser, which has state; see `ReadBlock`."""
            try:
                result: Any = self._half(calls=True).extract_tool_calls(text.strip(), request)
            except Exception:
                return []
            if not result.tools_called or (result.content or "").strip():
                return []
            return [self._make_call(call.function.name, call.function.arguments, call.id) for call in result.tool_calls]

        def _make_call(self, name: Any, arguments: Any, given: str | None = None) -> ToolCall | None:
            """Create a call; None if it is not complete."""
            if not isinstance(name, str) or not name or not is_whole(arguments):
                return None
            return ToolCall(name, arguments or "{}", given or self._make_tool_call_id(name))

        def _reader(self, request: Any) -> AnswerReader | LetterReader:
            if own_language:
                return LetterReader(lambda: kind(*self._made[0], **self._made[1]), request, self._prompt)
            self._initialize_history_tool_call_cnt(request)
            splitter = ReasoningSplitter(self._half(calls=False)) if self.reasoning_parser is not None else None
            return AnswerReader(splitter, self._content_reader(request), request, self._prompt)

        def _content_reader(self, request: Any) -> ContentReader | None:
            if self.tool_parser is None or not request.tools or request.tool_choice == "none":
                return None
            if self.tool_parser.supports_required_and_named:
                if request.tool_choice == "required":
                    return CallReader(partial(read_required, make=self._make_call), REQUIRED)
                if not isinstance(request.tool_choice, str | None):
                    return NamedReader(self._make_call, self._get_function_name(request))
            return CallReader(partial(self._read_block, request), SYNTAXES[tool_parser])

        def parse(
            self,
            model_output: str,
            request: Any,
            enable_auto_tools: bool = False,
            model_output_token_ids: Sequence[int] = (),
        ) -> tuple[str | None, str | None, list[Any] | None]:
            parts = self._reader(request).feed(model_output, None, finished=True)
            empty = None if parts.calls or self.reasoning_parser is not None else ""
            calls = [protocol.FunctionCall(**call._asdict()) for call in parts.calls]
            return parts.reasoning or None, parts.content or empty, calls

        def parse_delta(
            self,
            delta_text: str,
            delta_token_ids: list[int],
            request: Any,
            prompt_token_ids: list[int] | None = None,
            *,
            finished: bool,
        ) -> Any:
            if self._stream is None:
                self._stream = self._reader(request)
            parts = self._stream.feed(delta_text, prompt_token_ids, finished=finished)
            if not any(parts):
                return None
            fields: dict[str, Any] = {name: text for name, text in parts._asdict().items() if text and name != "calls"}
            if parts.calls:
                fields["tool_calls"] = [self._delta(call) for call in parts.calls]
            return protocol.DeltaMessage(**fields)

        def _delta(self, call: ToolCall) -> Any:
            number, self._streamed_calls = self._streamed_calls, self._streamed_calls + 1
            function = protocol.DeltaFunctionCall(name=call.name, arguments=call.arguments)
            return protocol.DeltaToolCall(id=call.id or make_id(), type="function", index=number, function=function)

    return WholeAnswerParser
