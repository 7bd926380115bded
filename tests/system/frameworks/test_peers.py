"""Clients of other servers get what they read, by requests as their code writes them (peers.yaml)."""

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
    """What is there; ABSENT for nothing. A model's name may have dots in it, a place's parts have none."""
    for part in place.split("."):
        if isinstance(answer, list):
            answer = answer[int(part)] if int(part) < len(answer) else ABSENT
        else:
            answer = answer.get(part, ABSENT) if isinstance(answer, dict) else ABSENT
    return answer


def check(answer: Any, reads: str | Reads) -> None:
    for place, value in expected(reads).items():
        found = at(answer, place)
        kind = TYPES.get(value) if isinstance(value, str) else None
        if kind is None:
            assert found == value, (place, answer)
        else:
            assert isinstance(found, kind), (place, answer)
            assert found != ABSENT, (place, answer)


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


@pytest.mark.parametrize(
    "requested", CALLS, ids=lambda requested: re.sub(r"[^\w/.]+", "-", f"{requested.client}-{requested.call}")
)
def test_a_client_gets_what_it_reads(server: Server, requested: PeerCall) -> None:
    method, path = requested.call.split(" ")
    content = None if requested.body is None else json.dumps(requested.body).encode()
    own = {} if content is None or "User-Agent" in requested.headers else {"Content-Type": "application/json"}
    answer = server.http.request(method, path, content=content, headers={**own, **requested.headers})
    assert answer.status_code == requested.status, answer.text
    assert answer.headers["content-type"].partition(";")[0] == KINDS[requested.framing], answer.headers
    if requested.framing == "nothing":
        assert not answer.content
        return
    if requested.framing == "json":
        check(answer.json(), requested.reads)
        return
    found = pieces(requested.framing, answer.text)
    assert len(found) > 1
    for piece in found[:-1]:
        check(piece, requested.each)
    check(found[-1], requested.reads)
