"""Bodies with too many values are counted while they arrive, and refused before they are decoded."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.base.json import EXPONENT, Values
from registry.errors import TooLarge
from tests.unit.guard.serving import HOST, JSON, PATIENCE, served

TEXT = st.text(st.sampled_from('a"\\[{]}, :€\n1e'), max_size=6)
JSONS = st.recursive(
    TEXT | st.integers() | st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def held(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(held, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(held, value))
    if isinstance(value, float):
        return EXPONENT if "e" in json.dumps(value) else 0
    return int(isinstance(value, str))


def add(most: int, body: bytes, size: int) -> None:
    values = Values(most)
    for start in range(0, len(body), size):
        values.add(body[start : start + size])


@given(value=JSONS, size=st.integers(1, 9), ascii_only=st.booleans())
def test_the_count_is_right_however_the_body_is_cut(value: Any, size: int, ascii_only: bool) -> None:
    body, count = json.dumps(value, ensure_ascii=ascii_only).encode(), held(value)
    add(count, body, size)
    if count:
        with pytest.raises(TooLarge, match=f"more than {count - 1} "):
            add(count - 1, body, size)


def test_booleans_are_not_taken_for_exponents() -> None:
    add(1, b"[" + b"true,false,null," * 500_000 + b"1]", 1 << 16)


@pytest.mark.parametrize("size", [1 << 10, 1 << 22])
def test_a_text_is_one_value_whatever_is_in_it(size: int) -> None:
    for text in ("{[]}", 'say "a", then', "\\", '\\"', "\n"):
        add(1, json.dumps(text * 500_000).encode(), size)
    add(1, b"[" + b"7," * 2_000_000 + b"7]", size)


@pytest.mark.parametrize(
    "item", [b"[],", b"{},", b"[[[[", b'"",', b'{"role":"user","content":"x"},', b'{"a":', b"1e308,", b"-1E+308,"]
)
@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        (b"/v1/chat/completions", b'{"error":{"message":"This body holds more than 65536 '),
        (b"/v1/messages", b'{"type":"error","error":{"type":"request_too_large","message":"This body holds'),
        (b"/v1/embeddings", b'{"error":{"message":"This body holds'),
        (b"/v2/rerank", b'{"message":"This body holds'),
        (b"/api/chat", b'{"error":"This body holds'),
        (b"/v1/route", b'{"error":{"message":"This body holds'),
        (b"/v1/load_lora_adapter", b'{"error":{"message":"This body holds'),
    ],
)
async def test_a_body_is_refused_before_its_end_arrives(
    tmp_path: Path, item: bytes, path: bytes, prefix: bytes
) -> None:
    """The client never sends the rest, so a server that waited for it would not answer."""
    body = b'{"model": "chat", "messages": [' + item * (400_000 // len(item) + 66_000)
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n\r\n" % (len(body) + 1)
    async with served(tmp_path, body_seconds=PATIENCE) as server:
        wire = await server.connect()
        await wire.send(head + body)
        answer = await wire.answer()
        assert (answer.status, answer.body[: len(prefix)]) == (413, prefix)
        assert not server.gateway.released
        wire.close()


class Body(bytes):
    """A body that counts how many pieces of it are read."""

    pieces = 0

    def __getitem__(self, key: Any) -> Any:
        self.pieces += 1
        return super().__getitem__(key)


def test_counting_stops_at_the_bound_if_the_whole_body_arrives_at_once() -> None:
    """As JSON in strings of a body does. 4 MB of it delayed streams by 0.3 s."""
    body = Body(b"[" + b"1e308," * 700_000 + b"1]")
    with pytest.raises(TooLarge):
        Values(65_536).add(body)
    assert body.pieces == 1, "its first 64 KiB are over the bound"


async def test_a_body_that_says_it_is_too_large_is_refused_at_once(tmp_path: Path) -> None:
    """Without any byte of it."""
    head = b"POST /v1/organization/projects HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 10000000\r\n\r\n"
    async with served(tmp_path, body_seconds=PATIENCE) as server:
        wire = await server.connect()
        await wire.send(head)
        assert (await wire.answer()).status == 413
        wire.close()
