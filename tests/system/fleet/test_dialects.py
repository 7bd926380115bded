"""Through a front a client gets the node's own answer: the same bytes except ids and times.

The requests are the fuzzer's seeds for all paths of inference, with greedy sampling.
"""

import json
import re
from typing import Any

import httpx
import pytest

from models import sse
from runtime.http.routes import INFERENCE_PATHS
from tests.fuzz.corpus import SEEDS, Raw, read
from tests.system.serving import Server

pytestmark = pytest.mark.real
SENT = [raw for raw in read(SEEDS) if raw.path in INFERENCE_PATHS]
_VARIES = re.compile(
    r"req-[0-9a-f]{24}(-[0-9a-f]+)*|\b(chatcmpl|cmpl|resp|msg|rs|fc|embd|rerank|score|pooling)[-_][\w-]+"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r'|"(created|created_at|completed_at|\w*duration|time_\w+|\w*_time|id|request_id|item_id)":("[^"]*"|[\d.]+)'
)
"""Ids and times, which differ from answer to answer."""
HEADERS = ("content-type", "x-roundhouse-model", "x-roundhouse-adapter", "x-roundhouse-warning", "x-roundhouse-class")
Pair = tuple[Server, Server]


def greedy(raw: Raw) -> bytes:
    """Return the body with greedy sampling."""
    body = raw.body.encode("latin-1")
    try:
        data = json.loads(body)
    except ValueError:
        return body
    if isinstance(data, dict):
        if raw.path.startswith("/api/") and isinstance(data.get("options", {}), dict):
            data["options"] = {**data.get("options", {}), "temperature": 0}
        elif {"messages", "prompt", "input"} & data.keys() and "/embed" not in raw.path:
            data["temperature"] = 0
        return json.dumps(data).encode()
    return body


def ask(server: Server, raw: Raw) -> httpx.Response:
    headers = [(name, value) for name, value in raw.headers if name.lower() not in ("host", "content-length")]
    return server.http.request(raw.method, raw.target, headers=headers, content=greedy(raw))


def without_chance(response: httpx.Response) -> str:
    """Return the body without ids and times.

    The pieces of a stream are joined, because the engine's steps decide where it is cut.
    """
    text = response.text
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        pieces = [sse.data_of(event) for event in sse.Splitter(1 << 24).feed(response.content + b"\n\n")]
        text = "".join(_words(data) for data in sorted(filter(None, pieces), key=_choice))
    elif "ndjson" in response.headers.get("content-type", ""):
        text = "".join(_words(line) for line in response.content.splitlines())
    return _VARIES.sub("_", text)


def _choice(data: bytes) -> int:
    """Return the index of the choice that a piece belongs to: the pieces of several choices are interleaved."""
    match = re.search(rb'"choices":\[\{"index":(\d+)', data)
    return 0 if match is None else int(match[1])


def _words(data: bytes) -> str:
    """Return the text that a piece of a stream adds to the answer, in any dialect."""
    try:
        piece = json.loads(data)
    except ValueError:
        return data.decode()
    return "".join(_texts(piece))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        texts = [one for key, one in value.items() if key in ("content", "text", "delta", "response")]
        return [one for text in texts for one in ([text] if isinstance(text, str) else _texts(text))] or [
            one for inner in value.values() for one in _texts(inner)
        ]
    return [one for inner in value for one in _texts(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize("raw", SENT, ids=[f"{raw.path} {number}" for number, raw in enumerate(SENT)])
def test_a_front_answers_each_dialect_as_the_node_does(pair: Pair, raw: Raw) -> None:
    front, node = pair
    through, direct = ask(front, raw), ask(node, raw)
    assert through.status_code == direct.status_code, through.text
    assert {name: through.headers.get(name) for name in HEADERS} == {name: direct.headers.get(name) for name in HEADERS}
    assert without_chance(through) == without_chance(direct)
