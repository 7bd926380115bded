"""Reads bodies within bounds and decodes them.

A struct is the only definition of a body: for decoding, for validation and for the OpenAPI document.
"""

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from msgspec import inspect
from pydantic import BeforeValidator, ValidationError
from starlette.requests import ClientDisconnect

from registry.base.json import NOT_JSON
from registry.base.wording import quoted, size_words
from registry.errors import BadRequest, TooLarge
from registry.names import NAME_PATTERN, NAME_RULE

T = TypeVar("T", bound=msgspec.Struct)

# msgspec gives the position of a fault only in its message, which is parsed for `param` and nothing else.
_NULL = msgspec.Raw(b"null")
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_MODEL = "Object missing required field `model`"
_WHOLE_FLOAT = re.compile(rb"\d(?:\.0+(?!\d)|[eE])")
"""Matches bodies that may have been refused for a float without a fraction."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
MOST_NAMED = 8
_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
_FAULT_PATH = re.compile(r"(?:at `\$\.?([^`]*)`|field `([^`]+)`)")


async def read_body(request: Request, limit: int) -> bytes:
    """Read the whole body, without a byte order mark. Raises TooLarge as soon as it exceeds `limit` bytes.

    `guard.bodies` bounds its pace and decompresses it.
    """
    declared = dict(request.scope["headers"]).get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit:
        raise too_large_error(limit)
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more:  # like `Request.stream`, but without a generator per request
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise too_large_error(limit)
        parts.append(part)
    return b"".join(parts).removeprefix(BOM_UTF8)


def too_large_error(limit: int) -> TooLarge:
    return TooLarge(f"The body is over this server's limit of {size_words(limit)} for this endpoint.")


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse the body as a JSON object. Raises BadRequest with the position of a fault."""
    try:
        data = msgspec.json.decode(body)
    except NOT_JSON as error:
        raise unreadable_error(error, body) from None
    if not isinstance(data, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    return data


def unreadable_error(error: Exception, body: bytes = b"") -> BadRequest:
    """Describe why msgspec could not decode a body, with advice on what shells and editors make of JSON."""
    if isinstance(error, RecursionError):
        return BadRequest("the JSON body is nested too deeply", code="json_too_deep")
    if isinstance(error, UnicodeDecodeError):  # its position is within one string
        return BadRequest("The body is not valid JSON: it is not encoded in UTF-8.", code="invalid_json")
    return BadRequest(f"The body is not valid JSON: {error}.{_advice(body, str(error))}", code="invalid_json")


_FROM_FILE = "write the JSON into a file, and send it with curl -d @file"
_QUOTES = re.compile(rb"""'|[\[{]\s*(?:'|[A-Za-z_]+\s*:)""")
_PYTHONS = (b"True", b"False", b"None")
_BYTE = re.compile(r"\(byte (\d+)\)")
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB]..[^\\]")


def _advice(body: bytes, fault: str) -> str:
    at = _BYTE.search(fault)
    begin = body[:64].lstrip()
    if begin.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return " It is encoded in UTF-16, as files of PowerShell are: save it as UTF-8."
    if _QUOTES.match(begin):
        return f" Names and texts need double quotes. Shells of Windows take them away: {_FROM_FILE}."
    if at is not None and body[int(at[1]) :].startswith(_PYTHONS):
        return " Write true, false and null in lower case."
    # msgspec looks for the second half in what follows, and at the end calls the body truncated
    near = body[-12:] if at is None else body[max(0, int(at[1]) - 12) :][:24]
    if "surrogate" in fault or _HALF_PAIR.search(near):
        return " A text has half of a surrogate pair, as if an emoji was cut in two: cut texts between characters."
    if begin and begin[:1] not in b'{["' and not begin[:1].isdigit():
        return f" It does not begin like JSON: {_FROM_FILE}."
    return "" if begin else " It is empty."


def decode(body: bytes, kind: type[T], *, quoted_values: bool = False) -> T:
    """Decode JSON bytes to `kind`, with whole floats as integers. Raises BadRequest with fault and position.

    `quoted_values`: as in `convert`.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        if not quoted_values and _WHOLE_FLOAT.search(body) is None:
            raise validation_error(error, kind) from None
    except NOT_JSON as error:
        raise unreadable_error(error, body) from None
    return convert(parse_object(body), kind, quoted_values=quoted_values)


def convert(data: dict[str, Any], kind: type[T], *, quoted_values: bool = False) -> T:
    """Convert a parsed object to `kind`. Raises BadRequest as `decode` does.

    `quoted_values`: takes "true" and "3" for true and 3 where no string is allowed, as other servers of such a body do.
    Not for a kind with floats: "nan" would be one.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        pass
    data = with_integers(data)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        fault = error
    if quoted_values:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(data, kind, strict=False)
    raise validation_error(fault, kind)


def with_integers(value: Any) -> Any:
    """Convert whole floats in JSON to integers: languages with a single number type may write 8192.0.

    Raises BadRequest if it is nested more deeply than Python can follow, though not for msgspec.
    """
    try:
        return _with_integers(value)
    except RecursionError as error:
        raise unreadable_error(error) from None


def _with_integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) < 2**63:
            return int(value)
        case list():
            return [_with_integers(item) for item in value]
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case _:
            return value


WHOLE = BeforeValidator(with_integers)
"""Allows whole floats for a strict pydantic integer. Placed after its bounds, which the schema would lose."""


def model_error(error: ValidationError) -> BadRequest:
    """Describe the first fault that pydantic found in a body."""
    first = error.errors()[0]
    return fault_error(first["loc"], words_of(first), "The body")


def words_of(fault: Mapping[str, Any]) -> str:
    """Return pydantic's words on a fault, or the rule for names instead of its pattern."""
    return NAME_RULE if fault.get("ctx", {}).get("pattern") == NAME_PATTERN else str(fault["msg"])


def fault_error(loc: Sequence[object], message: str, whole: str) -> BadRequest:
    """Describe a fault at pydantic's position, without marks of a union's kinds. whole: the name of what was read."""
    where = ".".join(part for part in map(str, loc) if not part.startswith("<")) or None
    return BadRequest(f"{where or whole}: {message}.", param=where)


def validation_error(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> BadRequest:
    """Describe fault and position, and the allowed values if it is none of them."""
    text = str(error)
    if text == _NO_MODEL:
        return BadRequest("Say which model in 'model': GET /v1/models lists all.", param="model")
    paths = [inside or field for inside, field in _FAULT_PATH.findall(text)]
    param = ".".join(dict.fromkeys(p for p in reversed(paths) if p)) or None
    if text.startswith("Invalid enum value") and (words := _words(kind, param or "")):
        text += f": one of {', '.join(words)}"
    return BadRequest(f"{text}.", param=param)


def _words(kind: type[msgspec.Struct], param: str) -> list[str]:
    """The allowed values of a field such as `messages[0].role`. Empty if it allows others too."""
    types = [inspect.type_info(kind)]
    for step in _STEP.findall(param):
        types = [inner for one in _alternatives(types) for inner in _inside(one, step)]
    kinds = _alternatives(types)
    words = [word for one in kinds if isinstance(one, inspect.LiteralType) for word in one.values]
    flags = [False, True] if any(isinstance(one, inspect.BoolType) for one in kinds) else []
    return [word if isinstance(word, str) else msgspec.json.encode(word).decode() for word in (*words, *flags)]


def _alternatives(types: Sequence[inspect.Type]) -> list[inspect.Type]:
    """Unwrap unions and metadata."""
    result: list[inspect.Type] = []
    for one in types:
        match one:
            case inspect.UnionType():
                result += _alternatives(one.types)
            case inspect.Metadata():
                result += _alternatives([one.type])
            case _:
                result.append(one)
    return result


def _inside(one: inspect.Type, step: str) -> list[inspect.Type]:
    match one:
        case inspect.ListType() if step.startswith("["):
            return [one.item_type]
        case inspect.StructType():
            return [field.type for field in one.fields if field.encode_name == step]
        case _:
            return []


def decode_known(
    body: bytes,
    kind: type[T],
    defaults: Mapping[str, Sequence[object]] = MappingProxyType({}),
    *,
    quoted_values: bool = False,
) -> tuple[T, list[str]]:
    """Decode as `decode` does, and return the names of fields that `kind` does not have.

    `defaults`: values with which such fields have no effect, so they count as absent.
    """
    decoded, fields = decode(body, kind, quoted_values=quoted_values), _KEYS.decode(body)
    unknown = unknown_fields(fields, kind)
    asking = [
        name for name in unknown if name not in defaults or msgspec.json.decode(fields[name]) not in defaults[name]
    ]
    return decoded, asking


def refuse_fields(
    names: Sequence[str], changing: Collection[str], instead: Mapping[str, str] = MappingProxyType({})
) -> Sequence[str]:
    """Return the names, or raise BadRequest if an ignored field would have changed the answer.

    `instead`: the equivalent here, by the name of such a field.
    """
    for name in names:
        if name in changing:
            raise BadRequest(
                f"'{name}' has another name here: {instead[name]}."
                if name in instead
                else f"'{name}' would change the answer, and no model here can do it: leave it out.",
                param=name,
                code="unknown_parameter",
            )
    return names


ADAPTER_FIELDS = ("adapter_id", "lora_name", "lora_path")
"""Fields that name an adapter apart from its model: LoRAX's, Xinference's and SGLang's."""


def refuse_adapters(names: Sequence[str], instead: str = "'model', which takes an adapter's name") -> Sequence[str]:
    """Return the names, or raise BadRequest if one would choose an adapter, so that its base would answer."""
    return refuse_fields(names, ADAPTER_FIELDS, dict.fromkeys(ADAPTER_FIELDS, instead))


def unknown_fields(data: Mapping[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """The keys of `data` that `kind` does not have, except those with null."""
    return [key for key, value in data.items() if key not in kind.__struct_fields__ and value not in (None, _NULL)]


def warn_of_fields(names: Sequence[str]) -> str:
    """A warning, short enough for a header, that these fields were ignored. Empty if there are none."""
    listed = [name if _PLAIN_NAME.fullmatch(name) else "a field of no plain name" for name in names[:MOST_NAMED]]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"left out, as they have no effect here: {', '.join(listed)}{more}" if names else ""


def no_effect_error(name: str) -> BadRequest:
    """The error for a strict client where others get a warning."""
    return BadRequest(f"{quoted(name)} has no effect here: leave it out.", param=name, code="unknown_parameter")
