"""Turn function calls back into calls of custom tools, in Chat Completions.

| vLLM's answer                              | the client gets                                             |
|--------------------------------------------|-------------------------------------------------------------|
| a call of such a function                  | `type: custom`, with the text of `input` as `custom.input`  |
| its arguments in pieces                    | the whole input, in the piece that completes their JSON     |
| arguments that the answer's end cuts off   | the arguments as they are, with the finish reason           |
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from registry.base.json import NOT_JSON

Json = dict[str, Any]
_DATA, _MARK = b"data: ", b'"tool_calls"'


@dataclass(slots=True)
class CustomCalls:
    """The custom tools of one request, by their names. Converts its answer."""

    names: frozenset[str]
    _open: dict[tuple[Any, Any], str] = field(default_factory=dict)
    """Arguments so far of unfinished calls in a stream, by choice and call."""
    _done: set[tuple[Any, Any]] = field(default_factory=set)

    def restore(self, data: bytes) -> bytes:
        """Convert a complete answer, or complete events of a stream."""
        if data.startswith(b"{"):
            answer = msgspec.json.decode(data)
            for choice in answer.get("choices") or ():
                message = choice.get("message") or {}
                if message.get("tool_calls"):
                    message["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
            return msgspec.json.encode(answer)
        if not self._open and _MARK not in data:
            return data
        return b"".join(self._event(event) + b"\n\n" for event in data.split(b"\n\n") if event)

    def _call(self, call: Json) -> Json:
        function = call.get("function") or {}
        if function.get("name") not in self.names:
            return call
        text = function.get("arguments") or ""
        custom = {"name": function["name"], "input": text if (given := _input(text)) is None else given}
        return {**{name: value for name, value in call.items() if name != "function"}, "type": "custom"} | {
            "custom": custom
        }

    def _event(self, event: bytes) -> bytes:
        try:
            chunk: Json = msgspec.json.decode(event.removeprefix(_DATA))
        except NOT_JSON:  # a comment, or [DONE]
            return event
        for choice in chunk.get("choices") or ():
            delta, at = choice.get("delta") or {}, choice.get("index")
            pieces = [made for piece in delta.get("tool_calls") or () if (made := self._piece(piece, at)) is not None]
            if choice.get("finish_reason") is not None:
                for key in [key for key in self._open if key[0] == at]:
                    pieces.append({"index": key[1], "custom": {"input": self._open.pop(key)}})
            if pieces:
                choice["delta"] = delta | {"tool_calls": pieces}
            else:
                delta.pop("tool_calls", None)
        return _DATA + msgspec.json.encode(chunk)

    def _piece(self, piece: Json, choice: Any) -> Json | None:
        """Convert a piece of a call. None if it has nothing for the client."""
        function, key = piece.get("function") or {}, (choice, piece.get("index"))
        name, text = function.get("name"), function.get("arguments") or ""
        made: Json = {"index": piece.get("index")}
        if name in self.names:
            self._open[key] = ""
            made |= {"id": piece.get("id"), "type": "custom", "custom": {"name": name, "input": ""}}
        elif key in self._done:
            return None
        elif key not in self._open:
            return piece
        self._open[key] += text
        if (given := _input(self._open[key])) is not None:
            del self._open[key]
            self._done.add(key)
            made["custom"] = made.get("custom", {}) | {"input": given}
        return made if "custom" in made else None


def _input(arguments: str) -> str | None:
    """Return the input in a call's arguments. None unless they are a complete JSON object."""
    try:
        return str(msgspec.json.decode(arguments, type=dict[str, Any]).get("input", ""))
    except NOT_JSON:
        return None
