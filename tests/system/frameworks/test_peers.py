"""Other servers' clients find the fields they read, in answers to requests as their code writes them (peers.yaml)."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml

from models import sse
from tests.system.serving import Server

pytestmark = pytest.mark.real
TYPES = {"<str>": str, "<int>": int, "<float>": float, "<bool>": bool, "<list>": list, "<dict>": dict}
ABSENT = "<absent>"

Reads = dict[str, Any]


class PeerCall(msgspec.Struct, forbid_unknown_fields=True):
    """One request; peers.yaml says what its fields mean."""

    client: str
    call: str
    headers: dict[str, str] = {}
    body: Any = None
    status: int = 200
    framing: Literal["json", "lines", "events", "nothing"] = "json"
    each: str | Reads = {}
    reads: str | Reads = {}


_FILE = yaml.safe_load(Path(__file__).with_name("peers.yaml").read_text())
ANSWERS: Mapping[str, Reads] = _FILE["answers"]
CALLS = msgspec.convert(_FILE["calls"], list[PeerCall])


def expected(reads: str | Reads) -> Reads:
    if isinstance(reads, str):
        return ANSWERS[reads]
    return {**ANSWERS.get(reads.get("as", ""), {}), **{place: value for place, value in reads.items() if place != "as"}}


def at(answer: Any, place: str) -> Any:
    """Return the value at a dotted path, or ABSENT."""
    for part in place.split("."):
        if isinstance(answer, list):
            answer = answer[int(part)] if int(part) < len(answer) else ABSENT
        else:
            answer = answer.get(part, ABSENT) if isinstance(answer, dict) else ABSENT
    return answer


def check(answer: Any, reads: str | Reads) -> None:
    for place, value in expected(reads).items():
        actual = at(answer, place)
        kind = TYPES.get(value) if isinstance(value, str) else None
        if kind is None:
            assert actual == value, (place, answer)
        else:
            assert isinstance(actual, kind), (place, answer)
            assert actual != ABSENT, (place, answer)


def pieces(framing: str, text: str) -> list[Any]:
    if framing == "lines":
        return [json.loads(line) for line in text.splitlines()]
    return [json.loads(data) for data in sse.Reader().feed(text.encode()) if data != sse.DONE]


KINDS = {
    "json": "application/json",
    "lines": "application/x-ndjson",
    "events": "text/event-stream",
    "nothing": "application/json",
}


@pytest.mark.parametrize("peer_call", CALLS, ids=lambda call: re.sub(r"[^\w/.]+", "-", f"{call.client}-{call.call}"))
def test_a_client_finds_the_fields_it_reads(server: Server, peer_call: PeerCall) -> None:
    method, path = peer_call.call.split(" ")
    content = None if peer_call.body is None else json.dumps(peer_call.body).encode()
    own = {} if content is None or "User-Agent" in peer_call.headers else {"Content-Type": "application/json"}
    answer = server.http.request(method, path, content=content, headers={**own, **peer_call.headers})
    assert answer.status_code == peer_call.status, answer.text
    assert answer.headers["content-type"].partition(";")[0] == KINDS[peer_call.framing], answer.headers
    if peer_call.framing == "nothing":
        assert not answer.content
        return
    if peer_call.framing == "json":
        check(answer.json(), peer_call.reads)
        return
    *first, last = pieces(peer_call.framing, answer.text)
    assert first
    for piece in first:
        check(piece, peer_call.each)
    check(last, peer_call.reads)
