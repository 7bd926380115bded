"""A request to the chat engine, decoded once and checked field by field."""

import re
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from registry.base.json import NOT_JSON
from registry.errors import BadRequest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
INPUT_TOKENS = "/v1/responses/input_tokens"
"""Counts the tokens of a request to Responses. vLLM lacks it: see `VllmEngine`."""
VENDORS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS)
"""Paths whose clients expect an error for an unknown field. On vLLM's own paths such fields are ignored."""
TOKENIZING = ("/tokenize", "/detokenize")
COUNTING = frozenset((*TOKENIZING, COUNT_TOKENS, INPUT_TOKENS))
"""Paths whose answers the model does not generate."""
PATHS = frozenset((*VENDORS, *TOKENIZING))
"""Paths that a chat engine serves."""
ANSWER_ONLY = frozenset({"max_output_tokens", "store", "stream", "stream_options"})
"""Fields of Responses that change the answer but not the prompt."""
NOT_STORED = "store: nothing is stored here"
_NULL, _TRUE, _FALSE = (msgspec.Raw(word) for word in (b"null", b"true", b"false"))
_OFF = (_NULL, _FALSE, msgspec.Raw(b"0"))
_WHOLE = TypeAdapter(int)
"""Reads a number as vLLM does: '5' and 5.0 are 5."""
_WHOLE_FLOAT = re.compile(rb"(-?\d+)\.0+")
MOST_DIGITS = 64
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_NAME: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(str | None)
"""Decodes the name of a model. Built once, because `json.decode` with such a type would build it in 5 to 20 µs."""


class Turn(msgspec.Struct):
    """A message, or an item of a response's input."""

    role: Any = None
    content: msgspec.Raw = _NULL
    output: msgspec.Raw = _NULL
    """Result of a tool, in Responses."""


_TURN = msgspec.json.Decoder(Turn)


class ChatRequest:
    """The path and fields of a request. Each field's value is decoded when first read.

    A body that is not a JSON object has no fields but a `fault`. `body` is the client's own until a field changes.
    """

    def __init__(self, path: str, body: bytes) -> None:
        self.path = path
        self.fields: dict[str, msgspec.Raw] = {}
        self.fault: BadRequest | None = None
        self._body: bytes | None = body
        self._values: dict[str, Any] = {}
        self._items: dict[str, list[msgspec.Raw]] = {}
        self._turns: dict[str, list[Turn | None]] = {}
        self._given: dict[str, msgspec.Raw] = {}
        """The client's own values of fields that were replaced."""
        try:
            self.fields = _OBJECT.decode(body)
        except NOT_JSON as error:
            self.fault = _fault(error)

    @property
    def body(self) -> bytes:
        if self._body is None:
            self._body = msgspec.json.encode(self.fields)
        return self._body

    @property
    def model(self) -> str | None:
        """Return the model named in the body; None if there is none.

        Raises BadRequest if the body is not a JSON object with a string there, or is nested too deeply, because another
        parser might read another model from it.
        """
        if self.fault is not None:
            raise self.fault
        try:
            return _NAME.decode(self.fields.get("model", _NULL))
        except NOT_JSON as error:
            raise _fault(error, " - at `$.model`") from None

    def replace(self, name: str, value: bytes) -> None:
        """Replace the JSON value of a field."""
        self._given.setdefault(name, self.fields.get(name, _NULL))
        self.fields[name] = msgspec.Raw(value)
        self._body = None
        self._values.pop(name, None)
        self._items.pop(name, None)
        self._turns.pop(name, None)

    def drop(self, *path: str) -> None:
        """Remove a field, or one of an object inside it."""
        name, *inner = path
        if inner:
            self.replace(name, msgspec.json.encode(_without(self.raw_object(name), inner)))
            return
        del self.fields[name]
        self._body = None
        self._values.pop(name, None)
        self._items.pop(name, None)

    def keep_prompt(self) -> None:
        """Remove the fields of Responses that do not change the prompt, as for a call that only counts its tokens."""
        for name in ANSWER_ONLY & self.fields.keys():
            self.drop(name)

    def drop_nulls(self) -> None:
        """Remove fields that are null, which is what the vendors' clients mean.

        vLLM refuses some of them, others only after the complete answer was generated.
        """
        if self.path in VENDORS and _NULL in self.fields.values():
            self.fields = {name: raw for name, raw in self.fields.items() if raw != _NULL}
            self._body = None

    def write_integers(self) -> None:
        """Write fields that are whole floats as integers, as vLLM's validators require for some."""
        for name, raw in self.fields.items():
            if len(raw) <= MOST_DIGITS and (whole := _WHOLE_FLOAT.fullmatch(raw)):
                self.replace(name, whole[1])

    def drop_store(self) -> str:
        """Switch off OpenAI's `store`, which clients send by themselves. Returns a warning; '' if it was not on."""
        if self.path not in (CHAT, RESPONSES) or not self.is_true("store"):
            return ""
        self.replace("store", b"false")
        return NOT_STORED

    def has(self, name: str) -> bool:
        """Return whether a field is present and not null."""
        return self.fields.get(name, _NULL) != _NULL

    def is_true(self, name: str) -> bool:
        return self.fields.get(name) == _TRUE

    def is_on(self, name: str) -> bool:
        """Return whether a field is present and neither null, 0 nor false."""
        return self.fields.get(name, _NULL) not in _OFF

    def value(self, name: str) -> Any:
        """Return a field's value; None if it is absent."""
        if name not in self.fields:
            return None
        if name not in self._values:
            try:
                self._values[name] = msgspec.json.decode(self.fields[name])
            except NOT_JSON as error:
                raise _fault(error) from None
        return self._values[name]

    def given(self, name: str) -> Any:
        """Return the value of a field as the client sent it; None if it is absent."""
        return msgspec.json.decode(self._given[name]) if name in self._given else self.value(name)

    def object(self, name: str) -> dict[str, Any]:
        """Return a field that is an object; empty if it is absent or something else, which vLLM refuses."""
        value: dict[str, Any] = self.value(name) if self.is_object(name) else {}
        return value

    def requires_call(self) -> bool:
        """Return whether `tool_choice` requires a call of any function, in OpenAI's form or in Anthropic's."""
        return self.text("tool_choice") == "required" or self.object("tool_choice").get("type") == "any"

    def is_object(self, name: str) -> bool:
        raw = self.fields.get(name)
        return raw is not None and begins(raw, b"{")

    def raw_object(self, name: str) -> dict[str, msgspec.Raw]:
        """Return a field that is an object, with its values as raw JSON."""
        return _OBJECT.decode(self.fields[name]) if self.is_object(name) else {}

    def items(self, name: str) -> list[msgspec.Raw]:
        """Return the items of a field that is a list; empty if it is absent or something else."""
        if name not in self.fields:
            return []
        if name not in self._items:
            self._items[name] = list_items(self.fields[name])
        return self._items[name]

    def number(self, name: str, otherwise: int) -> int:
        """Return the absolute value of a number as vLLM reads it; `otherwise` for anything else, which vLLM refuses."""
        return number(self.fields[name], otherwise) if name in self.fields else otherwise

    def text(self, name: str) -> str:
        """Return a field that is a string; '' if it is absent or something else."""
        raw = self.fields.get(name)
        value: str = self.value(name) if raw is not None and begins(raw, b'"') else ""
        return value

    def turns(self, name: str) -> list[Turn | None]:
        """Return the messages or items of a list in order; None for non-objects, which vLLM refuses."""
        if name not in self._turns:
            self._turns[name] = [_TURN.decode(item) if begins(item, b"{") else None for item in self.items(name)]
        return self._turns[name]


def _without(fields: dict[str, msgspec.Raw], path: list[str]) -> dict[str, msgspec.Raw]:
    name, *inner = path
    if not inner:
        return {key: value for key, value in fields.items() if key != name}
    return fields | {name: msgspec.Raw(msgspec.json.encode(_without(_OBJECT.decode(fields[name]), inner)))}


def begins(raw: msgspec.Raw, mark: bytes) -> bool:
    """Return whether raw JSON begins with a character, without copying it."""
    return memoryview(raw)[:1] == mark


def list_items(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """Return the items of raw JSON that is a list; empty for anything else."""
    return _LIST.decode(raw) if begins(raw, b"[") else []


def number(raw: msgspec.Raw, otherwise: int) -> int:
    """Return the absolute value of a JSON number as vLLM reads it; `otherwise` for anything else."""
    if raw in (_TRUE, _FALSE):  # such as logprobs of Chat Completions
        return otherwise
    try:
        return abs(_WHOLE.validate_json(bytes(raw)))
    except ValidationError:
        return otherwise


def _fault(error: Exception, where: str = "") -> BadRequest:
    if isinstance(error, RecursionError):
        return BadRequest("the JSON body is nested too deeply", code="json_too_deep")
    return BadRequest(f"the body is not a JSON object as expected: {error}{where}", code="invalid_json")
