"""The log has a line per request, as JSON or for a terminal, and warns only of the server's own failures."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from registry.errors import EngineFailed
from runtime.config.logs import handler
from runtime.gateway.context import RequestContext
from runtime.gateway.metrics import Metrics
from runtime.gateway.sinks.operators import RequestLog, RequestMetrics, log
from runtime.http.routes import ENDPOINTS
from tenants.caller import ServiceClass
from tenants.ledger.rows import BATCH
from tests.unit.http.answering import answer
from tests.unit.http.fakes import FakeGateway, application

REQUEST = {"model": "chat", "messages": []}
ANSWER = [
    ResponseStart(status=200, content_type="application/json"), Chunk(data=b"{}"),
    ResponseEnd(usage=Usage(prompt_tokens=7, completion_tokens=3)),
]  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def log_lines(folder: Path, stream: io.StringIO, *bodies: Any, script: Any = ANSWER, **more: Any) -> list[str]:
    gateway = FakeGateway(folder, sinks=[RequestLog()], **more)
    gateway.links["chat"].script = lambda _: script
    displayed = handler(stream)
    log.addHandler(displayed)
    level = log.level
    log.setLevel(logging.INFO)  # unlike an assignment to `level`, this also clears the logger's cache of levels
    try:
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for number, body in enumerate(bodies):
                await client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": f"r-{number}"})
    finally:
        log.removeHandler(displayed)
        log.setLevel(level)
    return stream.getvalue().splitlines()


async def test_a_line_of_json_describes_each_request(tmp_path: Path) -> None:
    lines = await log_lines(tmp_path, io.StringIO(), REQUEST, {**REQUEST, "model": "nobody"})
    done, refused = map(json.loads, lines)
    assert (done["level"], done["request_id"], done["endpoint"]) == ("info", "r-0", "/v1/chat/completions")
    assert (done["model"], done["status"], done["end"]) == ("chat", 200, "done")
    assert (done["prompt_tokens"], done["completion_tokens"]) == (7, 3)
    assert 0 <= done["queue_seconds"] <= done["seconds"]
    assert "trace_id" not in done
    assert (refused["level"], refused["status"], refused["code"]) == ("info", 404, "model_not_found")
    assert "completion_tokens" not in refused


async def test_a_terminal_gets_plain_lines(tmp_path: Path) -> None:
    [line] = await log_lines(tmp_path, Terminal(), REQUEST)
    assert not line.startswith("{")
    assert all(part in line for part in ("INFO", "request_id=r-0", "model=chat", "status=200", "completion_tokens=3"))


async def test_a_failure_of_the_server_is_a_warning(tmp_path: Path) -> None:
    lines = await log_lines(tmp_path, io.StringIO(), REQUEST, script=[EngineFailed("It broke.")])
    assert [json.loads(line)["level"] for line in lines] == ["warning"]


async def test_text_of_the_body_is_not_logged(tmp_path: Path) -> None:
    secret = "my secret text"
    body = {**REQUEST, "messages": [{"role": "user", "content": secret}], "user": secret}
    assert secret not in "".join(await log_lines(tmp_path, io.StringIO(), body))


async def test_batch_lines_are_not_logged_and_do_not_count_in_the_series_of_alerts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """50,000 lines would hide people's requests in the log, and wait for hours by design."""
    caplog.set_level(logging.INFO, log.name)
    metrics = Metrics()
    gateway = FakeGateway(tmp_path, sinks=[RequestLog(), RequestMetrics(metrics)])
    gateway.links["chat"].script = lambda _: ANSWER
    for context in (RequestContext("person"), RequestContext("line", service_class=ServiceClass.BATCH, source=BATCH)):
        answered = await answer(
            gateway.gateway, context, ENDPOINTS["/v1/chat/completions"], json.dumps(REQUEST).encode()
        )
        assert answered.status == 200
    assert [record.request_id for record in caplog.records if record.name == log.name] == ["person"]  # type: ignore[attr-defined]
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    for name in ("roundhouse_time_to_first_token_seconds_count", "roundhouse_class_requests_total"):
        assert [one.labels["class"] for one in samples if one.name == name] == ["interactive"]
    assert sum(one.value for one in samples if one.name == "roundhouse_requests_total") == 2
