"""One line for each request: JSON in a pipe, plain on a terminal; what a client did wrong is no warning."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import httpx

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from registry.errors import EngineFailed
from runtime.config.logs import handler
from runtime.gateway.sinks.metrics import RequestLog, log
from tests.unit.http.fakes import FakeGateway, application

REQUEST = {"model": "chat", "messages": []}
ANSWER = [
    ResponseStart(status=200, content_type="application/json"), Chunk(data=b"{}"),
    ResponseEnd(usage=Usage(prompt_tokens=7, completion_tokens=3)),
]  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def logged(folder: Path, stream: io.StringIO, *bodies: Any, script: Any = ANSWER) -> list[str]:
    gateway = FakeGateway(folder, sinks=[RequestLog()])
    gateway.links["chat"].script = lambda _: script
    displayed = handler(stream)
    log.addHandler(displayed)
    level = log.level
    log.setLevel(logging.INFO)  # also empties the logger's cache of levels, which setting `level` does not
    try:
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for number, body in enumerate(bodies):
                await client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": f"r-{number}"})
    finally:
        log.removeHandler(displayed)
        log.setLevel(level)
    return stream.getvalue().splitlines()


async def test_a_line_of_json_with_what_happened(tmp_path: Path) -> None:
    done, refused = map(json.loads, await logged(tmp_path, io.StringIO(), REQUEST, {"model": "nobody", "messages": []}))
    assert (done["level"], done["request_id"], done["endpoint"]) == ("info", "r-0", "/v1/chat/completions")
    assert (done["model"], done["status"], done["end"]) == ("chat", 200, "done")
    assert (done["prompt_tokens"], done["completion_tokens"]) == (7, 3)
    assert 0 <= done["queue_seconds"] <= done["seconds"]
    assert (refused["level"], refused["status"], refused["code"]) == ("info", 404, "model_not_found")
    assert "completion_tokens" not in refused


async def test_a_line_for_people_on_a_terminal(tmp_path: Path) -> None:
    [line] = await logged(tmp_path, Terminal(), REQUEST)
    assert not line.startswith("{")
    assert all(part in line for part in ("INFO", "request_id=r-0", "model=chat", "status=200", "completion_tokens=3"))


async def test_what_the_server_did_wrong_is_a_warning(tmp_path: Path) -> None:
    lines = await logged(tmp_path, io.StringIO(), REQUEST, script=[EngineFailed("It broke.")])
    assert [json.loads(line)["level"] for line in lines] == ["warning"]


async def test_nothing_of_the_body_is_logged(tmp_path: Path) -> None:
    secret = "my secret text"
    body = {**REQUEST, "messages": [{"role": "user", "content": secret}], "user": secret}
    assert secret not in "".join(await logged(tmp_path, io.StringIO(), body))
