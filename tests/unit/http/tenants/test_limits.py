"""Limits in front of scripted engines: headers of each dialect, refusals, and the refund of unused tokens."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from models.messages import Chunk, RerankResult, ResponseEnd, ResponseStart, Usage
from models.tasks.chat import ChatPayload
from registry.errors import BudgetExceeded, EngineFailed, LimitExceeded
from registry.recipes.definition import Prices
from runtime.gateway.context import RequestContext
from runtime.gateway.sinks.tenants import demand_of
from runtime.gateway.target import Target
from runtime.http import errors as http_errors
from runtime.http.errors import Dialect, format_duration, format_time
from runtime.http.routes import ENDPOINTS
from tenants.caller import EVERYBODY
from tenants.costs.prices import PriceList
from tenants.limits.limiter import Limiter
from tenants.limits.records import Kind, Limit, Mode
from tests.fakes.clocks import LimiterClock
from tests.unit.http.answering import Answered, answer
from tests.unit.http.fakes import FakeGateway, Wire, application, recipe

PATH = "/v1/chat/completions"
DEAR = PriceList(10**12, 10**12, 2 * 10**12)
END = ResponseEnd(usage=Usage(prompt_tokens=7, completion_tokens=3))
BODY: dict[str, Any] = {"model": "chat", "messages": [], "max_tokens": 10}


class Limited:
    """A scripted gateway whose team `default` has limits, with a clock that tests advance."""

    def __init__(self, folder: Path, *limits: tuple[Kind, int, Mode]) -> None:
        self.clock = LimiterClock()
        self.limiter = Limiter(clock=self.clock, wall=self.clock.wall)
        made = [Limit(f"l{n}", "team", "default", kind, most, mode) for n, (kind, most, mode) in enumerate(limits)]
        self.limiter.replace(made, {})
        priced = [
            recipe(id_, task).model_copy(update={"price": Prices(input=1e6, output=2e6, pairs=5000)})
            for id_, task in (("chat", "chat"), ("rerank", "rerank"))
        ]
        self.gateway = FakeGateway(folder, priced, limiter=self.limiter)
        self.link = self.gateway.links["chat"]
        self.link.script = lambda _: [
            ResponseStart(status=200, content_type="application/json"),
            Chunk(data=b"{}"),
            END,
        ]
        self.app = application(self.gateway)

    async def ask(self, path: str = PATH, **more: Any) -> Answered:
        body = json.dumps({**BODY, **more}).encode()
        return await answer(self.gateway.gateway, RequestContext("r"), ENDPOINTS[path], body)

    def left(self, kind: Kind) -> int:
        return self.limiter.levels(EVERYBODY, "chat")[kind].remaining


async def test_openais_headers_and_the_refund_of_unused_tokens(tmp_path: Path) -> None:
    limited = Limited(tmp_path, (Kind.REQUESTS, 3, Mode.ENFORCE), (Kind.TOKENS, 6000, Mode.ENFORCE))
    found = await limited.ask()
    assert found.status == 200
    assert found.headers["x-ratelimit-limit-requests"] == "3"
    assert found.headers["x-ratelimit-remaining-requests"] == "2"
    assert found.headers["x-ratelimit-reset-requests"] == "20s"
    assert found.headers["x-ratelimit-remaining-tokens"] == str(6000 - 10), "7 prompt tokens and 3 completion tokens"
    assert limited.left(Kind.TOKENS) == 6000 - 10


async def test_a_refused_client_is_admitted_after_retry_after(tmp_path: Path) -> None:
    limited = Limited(tmp_path, (Kind.REQUESTS, 2, Mode.ENFORCE), (Kind.REQUESTS, 5, Mode.SHADOW))
    assert [(await limited.ask()).status for _ in range(3)] == [200, 200, 429]
    refused = await limited.ask()
    error = json.loads(refused.body)["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert [(one["kind"], one["limit"], one["seconds"]) for one in error["limits"]] == [("requests_per_minute", 2, 30)]
    assert (refused.headers["Retry-After"], refused.headers["retry-after-ms"]) == ("30", "30000")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    limited.clock.pass_(30)
    assert (await limited.ask()).status == 200


async def test_anthropics_client_gets_its_own_headers(tmp_path: Path) -> None:
    limited = Limited(tmp_path, (Kind.REQUESTS, 1, Mode.ENFORCE))
    transport = httpx.ASGITransport(app=limited.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        message = {**BODY, "messages": [{"role": "user", "content": "x"}]}
        found = await http.post("/v1/messages", json=message)
        assert found.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert found.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        assert "x-ratelimit-limit-requests" not in found.headers
    inner = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=limited.app))
    async with anthropic.AsyncAnthropic(
        base_url="http://test",
        api_key="x",
        max_retries=0,
        http_client=inner,  # type: ignore[arg-type]
    ) as client:
        with pytest.raises(anthropic.RateLimitError) as error:
            await client.messages.create(model="chat", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    assert error.value.response.headers["retry-after"] == "60"


async def test_openais_client_does_not_retry_a_spent_budget(tmp_path: Path) -> None:
    """A request of 7 prompt tokens at 1 and 3 completion tokens at 2 costs 13; more is reserved, by the body's size."""
    limited = Limited(tmp_path, (Kind.DAY, 300 * 10**6, Mode.ENFORCE), (Kind.MONTH, 5 * 10**6, Mode.WARN))
    found = await limited.ask()
    assert found.status == 200
    assert "spend per month" in found.headers["X-Roundhouse-Limit-Warning"]
    assert limited.left(Kind.DAY) == (300 - 13) * 10**6
    for _ in range(6):
        assert (await limited.ask()).status == 200
    inner = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=limited.app))
    requested = 0

    async def count(_request: httpx2.Request) -> None:
        nonlocal requested
        requested += 1

    inner.event_hooks["request"].append(count)
    async with openai.AsyncOpenAI(base_url="http://test/v1", api_key="x", max_retries=2, http_client=inner) as client:
        with pytest.raises(openai.RateLimitError) as error:
            await client.chat.completions.create(model="chat", messages=[], max_tokens=100)
    assert requested == 1
    assert (error.value.type, error.value.code) == ("insufficient_quota", "project_spend_limit_exceeded")
    assert error.value.response.headers["x-should-retry"] == "false"
    assert int(error.value.response.headers["retry-after"]) > 60


@pytest.mark.parametrize(("dialect", "has_header"), [("openai", True), ("cohere", False), ("jina", False)])
def test_coheres_sdks_do_not_wait_for_a_new_budget(dialect: str, has_header: bool) -> None:
    """They cap Retry-After at a minute and would block for two minutes of useless retries."""
    spent = BudgetExceeded("spend per day is 1.", [], retry_after=40_000)
    spent.should_retry = False
    found = http_errors.headers(spent, Dialect(dialect))
    assert ("Retry-After" in found, found["x-should-retry"]) == (has_header, "false")
    busy = LimitExceeded("requests per minute is 1.", [], retry_after=7)
    assert http_errors.headers(busy, Dialect(dialect))["Retry-After"] == "7"


@pytest.mark.parametrize("end", ["left", "failed", "refused"])
async def test_unused_reservations_are_returned_at_every_kind_of_end(tmp_path: Path, end: str) -> None:
    limited = Limited(tmp_path, (Kind.TOKENS, 6000, Mode.ENFORCE), (Kind.AT_ONCE, 1, Mode.ENFORCE))
    if end == "left":
        limited.link.gate.clear()
        wire = Wire(limited.app, PATH, [json.dumps(BODY).encode()])
        task = asyncio.create_task(wire.run())
        await limited.link.started.wait()
        assert limited.left(Kind.AT_ONCE) == 0
        assert (await limited.ask()).status == 429
        wire.leave.set()
        await task
        limited.link.gate.set()
    elif end == "failed":
        limited.link.script = lambda _: [EngineFailed("broke")]
        assert (await limited.ask()).status == 500
    else:
        assert (await limited.ask(model="nobody")).status == 404
    assert (limited.left(Kind.TOKENS), limited.left(Kind.AT_ONCE)) == (6000, 1)


async def test_a_hundred_requests_at_once_do_not_exceed_the_budget(tmp_path: Path) -> None:
    """At most as many are admitted as the budget can pay if each uses its maximum."""
    size = len(json.dumps(BODY, separators=(",", ":")))
    limited = Limited(tmp_path, (Kind.DAY, 7 * (size + 20) * 10**6, Mode.ENFORCE))
    limited.link.gate.clear()
    tasks = [asyncio.create_task(limited.ask()) for _ in range(100)]
    while len(limited.link.requests) < 7:
        await asyncio.sleep(0)
    limited.link.gate.set()
    found = [one.status for one in await asyncio.gather(*tasks)]
    assert (found.count(200), found.count(429)) == (7, 93)
    assert limited.left(Kind.DAY) == (7 * (size + 20) - 7 * 13) * 10**6


async def test_answered_pairs_are_charged(tmp_path: Path) -> None:
    limited = Limited(tmp_path, (Kind.DAY, 10**12, Mode.ENFORCE))
    limited.gateway.links["rerank"].script = lambda _: [
        RerankResult(logits=[0.0, 1.0], chunks=[1, 1], tokens=[2, 2]),
        ResponseEnd(usage=Usage(prompt_tokens=4)),
    ]
    requested = {"model": "rerank", "query": "q", "documents": ["a", "b"]}
    done = await answer(
        limited.gateway.gateway, RequestContext("r"), ENDPOINTS["/v1/rerank"], json.dumps(requested).encode()
    )
    assert done.status == 200
    assert limited.left(Kind.DAY) == 10**12 - (4 + 2 * 5) * 10**6


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.012, "12ms"), (1.5, "1.5s"), (360, "6m0s"), (3661, "1h1m1s"), (60, "1m0s")]
)
def test_durations_are_written_as_in_go(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_time_outside_the_calendar_becomes_the_last_one() -> None:
    """A limit that only warns may be overdrawn by any amount."""
    assert format_time(10**18) == "9999-12-31T23:59:59Z"


def test_a_target_is_affordable_within_the_budget_without_a_reservation(tmp_path: Path) -> None:
    """Routers check each of their targets."""
    limited = Limited(tmp_path, (Kind.DAY, 300 * 10**6, Mode.ENFORCE), (Kind.MONTH, 1, Mode.SHADOW))
    sink, contexts = limited.gateway.gateway._limits, {"chat": 512, "free": None}

    def affords(tokens: int, model: str = "chat", price: PriceList | None = DEAR) -> bool:
        requested = [ChatPayload(PATH, {**BODY, "max_tokens": tokens})]
        target = Target(model, model, "r", price=price)
        return sink.affords(EVERYBODY, requested, lambda one: contexts[one.model])(target)

    assert affords(10)
    assert not affords(300)
    assert affords(300, price=None)
    assert affords(300, "free", PriceList())
    assert limited.left(Kind.DAY) == 300 * 10**6


def test_the_demand_of_ollamas_raw_prompt_is_the_whole_context() -> None:
    body = {"prompt": "a"}
    for fills, output in ((False, 16), (True, 512)):
        assert demand_of([ChatPayload("/v1/completions", body, fills)], 512, 0.0).output == output
