"""Service classes, deadlines and preferences in requests.

| set in                           | words                               | class                              |
|----------------------------------|-------------------------------------|------------------------------------|
| body `x-tier`, header X-Tier     | critical, interactive, batch        | that one                           |
| body `service_tier` (OpenAI)     | priority, fast; default, scale; flex | critical; interactive; batch      |
| the same                         | auto, or absent                     | the key's                          |
| body `service_tier` (Anthropic)  | standard_only                       | interactive, or the key's if lower |

The first match counts. A class above the key's ceiling is lowered to it, and the answer says so.

| header                              | seconds                                             |
|-------------------------------------|-----------------------------------------------------|
| X-Request-Timeout                   | until the answer has to be complete                 |
| x-stainless-read-timeout (the SDKs) | until it has to begin, when the client gives up     |
| no X-Request-Timeout                | the key's timeout, with the same meaning            |

How long a client waits for a model that is not resident:

| header                      | while the model loads                                                          |
|-----------------------------|--------------------------------------------------------------------------------|
| (none)                      | the request waits, at most the recipe's queue.max_wait                         |
| Prefer: respond-async       | 202 at once with Location: /v1/models/{id}, which shows phase and percent      |
| Prefer: wait=N              | waits N seconds at most, then 503 with Retry-After from the expected load time |
| Prefer: handling=strict     | the request waits; hints that the model cannot follow are refused, not ignored |
| X-Roundhouse-Progress: sse  | a chat stream starts at once; SSE comments show the progress until the answer  |

Prefer is defined by RFC 7240. With X-Roundhouse-Progress the status line is sent before the outcome is known, and a
failure is the stream's last event; so clients have to ask for it.
"""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec

from models.tasks.chat import TOKEN_LIMITS
from registry.base.json import NOT_JSON
from registry.errors import BadRequest
from runtime.gateway.context import Preference, RequestContext, RequestHints
from runtime.http.bodies import parse_object, with_integers
from tenants.caller import CLASSES, Caller, ServiceClass

_WAIT = re.compile(r"^wait\s*=\s*\"?(\d{1,6})\"?$")


def parse_preference(headers: Iterable[tuple[bytes, bytes]]) -> Preference:
    """Read a preference from raw ASGI headers. Ignores what it does not know, as RFC 7240 requires."""
    respond_async, wait, progress, strict = False, None, False, False
    for name, value in headers:
        if name == b"prefer":
            for part in value.decode("latin-1").split(","):
                token = part.strip().lower()
                if token == "respond-async":
                    respond_async = True
                elif token in ("handling=strict", 'handling="strict"'):
                    strict = True
                elif match := _WAIT.match(token):
                    wait = float(match.group(1))
        elif name == b"x-roundhouse-progress":
            progress = value.strip().lower() == b"sse"
    return Preference(respond_async, wait, progress and not respond_async, strict)  # a 202 needs the status line


MOST_SECONDS = 86_400.0
TIERS: Mapping[str, ServiceClass | None] = {
    "priority": ServiceClass.CRITICAL, "fast": ServiceClass.CRITICAL, "default": ServiceClass.INTERACTIVE,
    "scale": ServiceClass.INTERACTIVE, "flex": ServiceClass.BATCH, "auto": None, "standard_only": None,
}  # fmt: skip
_OWN = b'"x-tier"'
_INLINE: Mapping[bytes, re.Pattern[bytes]] = {
    b";base64,": re.compile(rb";base64,[A-Za-z0-9+/=\\]*"),
    b'"data"': re.compile(rb'"data"\s*:\s*"[A-Za-z0-9+/=\\]*'),
    b'"images"': re.compile(rb'"(?:iVBOR|\\?/9j|R0lG|UklGR)[A-Za-z0-9+/=\\]*'),
}
"""Match images and sound in a body, whose bytes are not text: in data URLs, in Anthropic's sources and OpenAI's sound,
and in Ollama's messages. PHP writes a slash in JSON as an escape."""


_MOST_TOKENS = frozenset(chain.from_iterable(TOKEN_LIMITS.values()))
_FIELDS = frozenset(("x-tier", "service_tier", *_MOST_TOKENS))
_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


def context_of_headers(id_: str, headers: Sequence[tuple[bytes, bytes]]) -> RequestContext:
    """Read a request's headers. Raises BadRequest for an unknown class or an invalid time."""
    values = {name: value.decode("latin-1").strip() for name, value in headers}
    arrived = time.monotonic()
    timeout, reading = values.get(b"x-request-timeout"), values.get(b"x-stainless-read-timeout")
    hints = RequestHints()
    if (tier := values.get(b"x-tier")) is not None:
        hints = RequestHints(service_class=_class(tier.lower(), "X-Tier"))
    context = RequestContext(
        id_,
        arrived=arrived,
        deadline=None if timeout is None else arrived + _seconds(timeout),
        first_by=None if reading is None else _read_deadline(reading, arrived),
        preference=parse_preference(headers),
        hints=hints,
        headers=headers,
    )
    return _with_class(context)


def with_caller(context: RequestContext, caller: Caller) -> RequestContext:
    """Add the caller, with its class and timeout."""
    deadline = context.deadline
    if deadline is None and caller.timeout is not None:
        deadline = context.arrived + caller.timeout
    context = replace(context, caller=caller, deadline=deadline, service_class=caller.service_class)
    return _with_class(context)


def _with_class(context: RequestContext) -> RequestContext:
    """Apply the requested class up to the ceiling. A batch line has the class of its batch."""
    if context.source == "batch":
        return context
    hints = context.hints.service_class
    service_class = context.service_class if hints is None else hints
    given = max(service_class, context.caller.ceiling)
    return context if given == context.service_class else replace(context, service_class=given)


def text_size(body: bytes) -> int:
    """Bytes of a body without images and sound."""
    for mark, pattern in _INLINE.items():
        if mark in body:
            body = pattern.sub(b"", body)  # not only counted, as the next pattern may match the same image
    return len(body)


def read(context: RequestContext, path: str, body: bytes) -> tuple[RequestContext, bytes]:
    """Like `take`, for an undecoded body. Returns the context and the body without those fields.

    Leaves an invalid body to its parser.
    """
    size = text_size(body)
    try:
        fields = _DECODER.decode(body)
    except NOT_JSON:
        return with_size(context, size), body
    data = {name: msgspec.json.decode(raw) for name, raw in fields.items() if name in _FIELDS}
    context = take(context, path, data, size)
    if context.hints.echoes_class or _OWN in body:
        rest = parse_object(body)
        for name in _own_fields(path):
            rest.pop(name, None)
        body = msgspec.json.encode(rest)
    return context, body


def take(context: RequestContext, path: str, data: dict[str, Any], size: int) -> RequestContext:
    """Add the hints of a decoded body to the context, and remove fields that are only for this server from the body.

    Raises BadRequest for an unknown class.
    """
    counts = [count for name in _MOST_TOKENS if (count := _count(data.get(name))) is not None]
    service_class, echoes_class = context.hints.service_class, context.hints.echoes_class
    if path in TOKEN_LIMITS and (word := _word(data.get("service_tier"), "service_tier")) is not None:
        if word not in TIERS:
            raise BadRequest(f"service_tier is one of {', '.join(TIERS)}.", param="service_tier")
        named = max(ServiceClass.INTERACTIVE, context.caller.service_class) if word == "standard_only" else TIERS[word]
        echoes_class, service_class = True, named if service_class is None else service_class
    if (word := _word(data.get("x-tier"), "x-tier")) is not None:
        service_class = _class(word, "x-tier")
    hints = RequestHints(size, min(counts, default=None), service_class, echoes_class)
    if hints.echoes_class or "x-tier" in data:
        for name in _own_fields(path):
            data.pop(name, None)
    return _with_class(replace(context, hints=hints))


def with_size(context: RequestContext, size: int) -> RequestContext:
    """Add only the size of the body as a hint."""
    return replace(context, hints=replace(context.hints, size=size))


def _own_fields(path: str) -> tuple[str, ...]:
    """The fields of a body that are only for this server. APIs whose calls generate text have a `service_tier`."""
    return ("x-tier", "service_tier") if path in TOKEN_LIMITS else ("x-tier",)


def _word(value: object, param: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise BadRequest(f"'{param}' must be a string.", param=param)


def _class(word: str, param: str) -> ServiceClass:
    if word not in CLASSES:
        raise BadRequest(f"{param} is one of {', '.join(CLASSES)}.", param=param)
    return ServiceClass.of(word)


def _count(value: object) -> int | None:
    if value is None:  # the usual case: raising would cost as much as all other hints
        return None
    try:
        count = msgspec.convert(with_integers(value), int)
    except msgspec.ValidationError:
        return None  # the body's parser reports the fault
    return None if count < 0 else count  # -1 stands for no limit


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MOST_SECONDS:
        raise BadRequest(
            f"X-Request-Timeout is a number of seconds, more than 0 and at most {MOST_SECONDS:.0f}.",
            param="X-Request-Timeout",
        )
    return seconds


def _read_deadline(text: str, arrived: float) -> float | None:
    """Parse a deadline. Invalid values are ignored, since client libraries send the header on their own."""
    try:
        return arrived + _seconds(text)
    except BadRequest:
        return None
