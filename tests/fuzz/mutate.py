"""Makes one request from another by changes to fields, bytes, headers, target or method, decided by the seed alone."""

import json
import re
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any

import msgspec

from tests.contract.chat.bombs import ATTACKS, TOOLS
from tests.fuzz.corpus import Raw

BOMBS = [json.loads(json.dumps(bomb)) for bomb in (ATTACKS | TOOLS).values()]
MAX_BYTES = 3 << 20
"""Most bytes of a body: below the server's limit, so that it reads most of them."""
DEEPEST = 600
"""Levels that are parsed here: if Python's stack overflows while hypothesis counts garbage, the process dies."""
CHAT = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
FEW = {"max_tokens": 6, "max_output_tokens": 6, "max_new_tokens": 6}
NUMBERS = (0, -1, 1, 128, 129, 2**31, 2**53, 2**63, 2**64, -(2**63), 1e308, -1e-308, 0.5)
TEXTS = (
    "",
    " ",
    "\x00",
    "\r\n\r\nGET / HTTP/1.1",
    "../../etc/passwd",
    "/etc/passwd",
    "\ud83d",
    "\u202e\x00\uffff",
    "%00",
    "${jndi:ldap://x}",
    "{{7*7}}",
    "starter-chat",
    "starter-embed",
    "uppercase",
    "starter-chat:uppercase@v1",
    "*",
    "a\nb",
)
FIELDS = (
    "model",
    "messages",
    "prompt",
    "input",
    "stream",
    "stream_options",
    "n",
    "best_of",
    "logprobs",
    "prompt_logprobs",
    "top_logprobs",
    "stop",
    "stop_token_ids",
    "logit_bias",
    "bad_words",
    "tools",
    "tool_choice",
    "response_format",
    "structured_outputs",
    "echo",
    "suffix",
    "truncate_prompt_tokens",
    "priority",
    "kv_transfer_params",
    "request_id",
    "cache_salt",
    "mm_processor_kwargs",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "use_beam_search",
    "dimensions",
    "encoding_format",
    "truncate",
    "top_n",
    "max_tokens",
    "return_documents",
    "query",
    "texts",
    "inputs",
    "parameters",
    "metadata",
    "store",
    "previous_response_id",
    "background",
    "include",
    "reasoning",
    "thinking",
    "system",
    "user",
    "seed",
    "temperature",
    "min_tokens",
)
HEADERS = (
    ("Host", "evil.example"),
    ("Host", ""),
    ("Host", "127.0.0.1:99999"),
    ("Host", "[::1"),
    ("Origin", "null"),
    ("Origin", "http://evil.example"),
    ("Sec-Fetch-Site", "cross-site"),
    ("Content-Length", "-1"),
    ("Content-Length", "99999999999999999999"),
    ("Content-Length", "10000000"),
    ("Content-Length", "3"),
    ("Transfer-Encoding", "chunked"),
    ("Transfer-Encoding", "gzip"),
    ("Expect", "100-continue"),
    ("Expect", "200-ok"),
    ("Upgrade", "websocket"),
    ("Connection", "keep-alive, upgrade"),
    ("Content-Encoding", "gzip"),
    ("Range", "bytes=0-"),
    ("Prefer", "respond-async"),
    ("Prefer", "progress"),
    ("Prefer", "wait=" + "9" * 400),
    ("Accept", "text/html"),
    ("X-Request-Id", "a" * 5000),
    ("X-Request-Id", "a\tb\x01"),
    ("Authorization", "Bearer " + "x" * 3000),
    ("Content-Type", "text/plain"),
    ("Content-Type", "multipart/form-data"),
    ("Cookie", "a=" + "b" * 8000),
    ("Cookie", 'roundhouse_session="' + "\\" * 60_000 + '"'),
    ("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"),
    ("If-None-Match", '"' * 5000),
    ("Content-Type", "multipart/form-data; boundary=" + "x" * 300),
    ("Content-Type", "application/json; charset=utf-7"),
    ("X-HTTP-Method-Override", "DELETE"),
    ("X-Forwarded-For", "::1, 10.0.0.1"),
    ("Forwarded", 'for="_x"'),
    ("a" * 3000, "b"),
    ("x y", "z"),
    ("", "empty"),
    ("x", "\xff\xfe"),
    ("Priority", "u=0"),
    ("Timeout", "0"),
)
PARTS = ("..", "%2e%2e", "", "%00", "a" * 2000, "%ff%fe", "\xff")
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW", "post", "G\x00T")


def mutate(raw: Raw, random: Random) -> Raw:
    """Return a changed request. Most get one change, some get several."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        changes = _CHANGES if raw.body else _CHANGES[2:]
        raw = random.choices(*zip(*changes, strict=True))[0](raw, random)
    return raw


def _fields(raw: Raw, random: Random) -> Raw:
    if _depth(raw.body) > DEEPEST:
        return _bytes(raw, random)
    try:
        body = json.loads(raw.body.encode("latin-1"))
    except ValueError:
        return _bytes(raw, random)
    if isinstance(body, dict) and raw.path in CHAT and random.random() < 0.15:
        body |= random.choice(BOMBS)
    else:
        body = _changed(body, random)
    if isinstance(body, dict) and random.random() < 0.7:  # an answer without a limit fills the whole context
        body |= {name: most for name, most in FEW.items() if name in body}
    return msgspec.structs.replace(raw, body=_dumped(body))


def _depth(text: str) -> int:
    """Return how deep brackets nest, including those in strings."""
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in re.findall(r"[][{}]", text)), default=0)


def _dumped(body: object) -> str:
    return json.dumps(body, ensure_ascii=True)[:MAX_BYTES]


def _changed(value: Any, random: Random) -> Any:
    """Return the value with one part of it changed, at any depth."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        name = random.choice(list(value))
        match random.randrange(8):
            case 0:
                return {key: kept for key, kept in value.items() if key != name}
            case 1:
                return {**value, random.choice(FIELDS): _nasty(random)}
            case 2:
                return {**value, random.choice(TEXTS): value[name]}
            case _:
                return {**value, name: _changed(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.7:
        at = random.randrange(len(value))
        if random.random() < 0.2:
            return value * random.choice((2, 50, 3000))
        return [*value[:at], _changed(value[at], random), *value[at + 1 :]]
    return _nasty(random)


def _nasty(random: Random) -> Any:
    match random.randrange(9):
        case 0:
            return random.choice(NUMBERS)
        case 1:
            return random.choice(TEXTS) * random.choice((1, 1, 100, 20_000))
        case 2:
            return random.choice((True, False, None))
        case 3:
            return []
        case 4:
            return {}
        case 5:
            return [random.choice(NUMBERS)] * random.choice((1, 200, 40_000))
        case 6:
            return {str(i): i for i in range(random.choice((1, 300, 20_000)))}
        case 7:
            return [[random.choice(TEXTS)], {"type": random.choice(TEXTS), "text": random.choice(TEXTS)}]
        case _:
            nested: Any = 1
            for _ in range(random.choice((3, 60, 500))):
                nested = [nested] if random.random() < 0.5 else {"a": nested}
            return nested


def _bytes(raw: Raw, random: Random) -> Raw:
    body, at = raw.body, random.randrange(len(raw.body) + 1)
    match random.randrange(6):
        case 0:
            body = body[:at]
        case 1:
            body = body[:at] + chr(random.randrange(256)) + body[at + 1 :]
        case 2:
            body = body[:at] + random.choice(("\xff", "\x00", "NaN", "1e999", "\\ud800", '"', "[" * 9000)) + body[at:]
        case 3:
            piece = body[at : at + random.randrange(1, 64)]
            body = body[:at] + piece * random.choice((2, 100, 5000)) + body[at:]
        case 4:
            body = "\xef\xbb\xbf" + body
        case _:
            body = random.choice(("", "null", "[]", "0", '"a"', "{}", "[" * 100_000, '{"a":' * 50_000, "9" * 100_000))
    return msgspec.structs.replace(raw, body=body[:MAX_BYTES])


def _header(raw: Raw, random: Random) -> Raw:
    headers = list(raw.headers)
    match random.randrange(5):
        case 0 if headers:
            headers.pop(random.randrange(len(headers)))
        case 1 if headers:
            headers.append(random.choice(headers))
        case 2:
            headers += [(f"X-{i}", "y" * random.choice((0, 10, 100))) for i in range(random.choice((50, 600, 5000)))]
        case _:
            headers.append(random.choice(HEADERS))
    return msgspec.structs.replace(raw, headers=tuple(headers))


def _target(raw: Raw, random: Random) -> Raw:
    target = raw.target
    match random.randrange(6):
        case 0:
            names, values = ("model", "base", "version", "x", "%zz"), ("", "%00", "a" * 3000, "%ff")
            made = [f"{random.choice(names)}={random.choice(values)}" for _ in range(random.choice((1, 3, 500)))]
            target += ("&" if "?" in target else "?") + "&".join(made)
        case 1:
            parts = target.split("/")
            parts[random.randrange(len(parts))] = random.choice(
                ("..", "%2e%2e", "", "%00", "a" * 2000, "%ff%fe", "\xff")
            )
            target = "/".join(parts) or "/"
        case 2:
            target += random.choice(("/", "//", "?", "#a", "%", ";x=1", "\\"))
        case 3:
            target = target.upper()
        case 4:
            target = random.choice(("http://evil.example", "//evil.example", "*", "evil.example:443")) + target
        case _:
            target = random.choice(("*", "/" * 3000, "/%", "/.git/config", "/v1", "/docs", "/openapi.json", "/metrics"))
    return msgspec.structs.replace(raw, target=target)


def _method(raw: Raw, random: Random) -> Raw:
    return msgspec.structs.replace(raw, method=random.choice(METHODS))


_CHANGES: tuple[tuple[Callable[[Raw, Random], Raw], int], ...] = (
    (_fields, 12),
    (_bytes, 4),
    (_header, 4),
    (_target, 2),
    (_method, 1),
)
