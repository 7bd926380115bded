"""Limits in front of scripted engines: headers of each dialect, refusals, and what is given back at the end."""

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
from runtime.gateway.charging import demand_of
from runtime.gateway.context import RequestContext
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
    """A scripted gateway whose team `default` has limits; the clock is moved by hand."""

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


async def test_headers_of_openai_and_what_is_given_back(tmp_path: Path) -> None:
    held = Limited(tmp_path, (Kind.REQUESTS, 3, Mode.ENFORCE), (Kind.TOKENS, 6000, Mode.ENFORCE))
    found = await held.ask()
    size = len(json.dumps(BODY, separators=(",", ":")))
    assert found.status == 200
    assert found.headers["x-ratelimit-limit-requests"] == "3"
    assert found.headers["x-ratelimit-remaining-requests"] == "2"
    assert found.headers["x-ratelimit-reset-requests"] == "20s"
    assert found.headers["x-ratelimit-remaining-tokens"] == str(6000 - size - 10)
    assert held.left(Kind.TOKENS) == 6000 - 10, "7 were read and 3 were made"


async def test_a_refusal_and_a_client_that_waits_for_it(tmp_path: Path) -> None:
    held = Limited(tmp_path, (Kind.REQUESTS, 2, Mode.ENFORCE), (Kind.REQUESTS, 5, Mode.SHADOW))
    assert [(await held.ask()).status for _ in range(3)] == [200, 200, 429]
    refused = await held.ask()
    error = json.loads(refused.body)["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert [(one["kind"], one["limit"], one["seconds"]) for one in error["limits"]] == [("requests_per_minute", 2, 30)]
    assert (refused.headers["Retry-After"], refused.headers["retry-after-ms"]) == ("30", "30000")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    held.clock.pass_(30)
    assert (await held.ask()).status == 200


async def test_anthropics_headers_and_clients(tmp_path: Path) -> None:
    held = Limited(tmp_path, (Kind.REQUESTS, 1, Mode.ENFORCE))
    transport = httpx.ASGITransport(app=held.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        message = {**BODY, "messages": [{"role": "user", "content": "x"}]}
        found = await http.post("/v1/messages", json=message)
        assert found.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert found.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        assert "x-ratelimit-limit-requests" not in found.headers
    inner = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=held.app))
    async with anthropic.AsyncAnthropic(
        base_url="http://test",
        api_key="x",
        max_retries=0,
        http_client=inner,  # type: ignore[arg-type]
    ) as client:
        with pytest.raises(anthropic.RateLimitError) as error:
            await client.messages.create(model="chat", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    assert error.value.response.headers["retry-after"] == "60"


async def test_a_budget_that_is_spent_is_not_tried_again(tmp_path: Path) -> None:
    """A prompt token costs 1, one that is made 2: 13 a request. Reserved is more: the whole of the body."""
    held = Limited(tmp_path, (Kind.DAY, 300 * 10**6, Mode.ENFORCE), (Kind.MONTH, 5 * 10**6, Mode.WARN))
    found = await held.ask()
    assert found.status == 200
    assert "spend per month" in found.headers["X-Roundhouse-Limit-Warning"]
    assert held.left(Kind.DAY) == (300 - 13) * 10**6
    for _ in range(6):
        assert (await held.ask()).status == 200
    inner = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=held.app))
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
    """They would block for two minutes: they sleep for at most one of a Retry-After, and retry in vain."""
    spent = BudgetExceeded("spend per day is 1.", [], retry_after=40_000)
    spent.should_retry = False
    found = http_errors.headers(spent, Dialect(dialect))
    assert ("Retry-After" in found, found["x-should-retry"]) == (has_header, "false")
    busy = LimitExceeded("requests per minute is 1.", [], retry_after=7)
    assert http_errors.headers(busy, Dialect(dialect))["Retry-After"] == "7"


@pytest.mark.parametrize("end", ["left", "failed", "refused"])
async def test_whatever_its_end_what_was_not_used_is_given_back(tmp_path: Path, end: str) -> None:
    held = Limited(tmp_path, (Kind.TOKENS, 6000, Mode.ENFORCE), (Kind.AT_ONCE, 1, Mode.ENFORCE))
    if end == "left":
        held.link.gate.clear()
        wire = Wire(held.app, PATH, [json.dumps(BODY).encode()])
        task = asyncio.create_task(wire.run())
        await held.link.started.wait()
        assert held.left(Kind.AT_ONCE) == 0
        assert (await held.ask()).status == 429
        wire.leave.set()
        await task
        held.link.gate.set()
    elif end == "failed":
        held.link.script = lambda _: [EngineFailed("broke")]
        assert (await held.ask()).status == 500
    else:
        assert (await held.ask(model="nobody")).status == 404
    assert (held.left(Kind.TOKENS), held.left(Kind.AT_ONCE)) == (6000, 1)


async def test_a_hundred_at_once_on_one_cap(tmp_path: Path) -> None:
    """When 100 come together no more are let in than the budget can pay at the worst."""
    size = len(json.dumps(BODY, separators=(",", ":")))
    held = Limited(tmp_path, (Kind.DAY, 7 * (size + 20) * 10**6, Mode.ENFORCE))
    held.link.gate.clear()
    tasks = [asyncio.create_task(held.ask()) for _ in range(100)]
    while len(held.link.requests) < 7:
        await asyncio.sleep(0)
    held.link.gate.set()
    found = [one.status for one in await asyncio.gather(*tasks)]
    assert (found.count(200), found.count(429)) == (7, 93)
    assert held.left(Kind.DAY) == (7 * (size + 20) - 7 * 13) * 10**6


async def test_pairs_are_charged_where_they_were_answered(tmp_path: Path) -> None:
    held = Limited(tmp_path, (Kind.DAY, 10**12, Mode.ENFORCE))
    held.gateway.links["rerank"].script = lambda _: [
        RerankResult(logits=[0.0, 1.0], chunks=[1, 1], tokens=[2, 2]),
        ResponseEnd(usage=Usage(prompt_tokens=4)),
    ]
    requested = {"model": "rerank", "query": "q", "documents": ["a", "b"]}
    done = await answer(
        held.gateway.gateway, RequestContext("r"), ENDPOINTS["/v1/rerank"], json.dumps(requested).encode()
    )
    assert done.status == 200
    assert held.left(Kind.DAY) == 10**12 - (4 + 2 * 5) * 10**6


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.012, "12ms"), (1.5, "1.5s"), (360, "6m0s"), (3661, "1h1m1s"), (60, "1m0s")]
)
def test_times_as_go_writes_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_moment_that_no_calendar_has_is_the_last_one() -> None:
    """A limit that only warns may be overdrawn by any amount."""
    assert format_time(10**18) == "9999-12-31T23:59:59Z"


def test_what_a_callers_budget_has_room_for(tmp_path: Path) -> None:
    """Routers ask it of each of their targets; nothing is reserved."""
    held = Limited(tmp_path, (Kind.DAY, 300 * 10**6, Mode.ENFORCE), (Kind.MONTH, 1, Mode.SHADOW))
    sink, contexts = held.gateway.gateway._limits, {"chat": 512, "free": None}

    def affords(tokens: int, model: str = "chat", price: PriceList | None = DEAR) -> bool:
        requested = [ChatPayload(PATH, {**BODY, "max_tokens": tokens})]
        target = Target(model, model, "r", price=price)
        return sink.affords(EVERYBODY, requested, lambda one: contexts[one.model])(target)

    assert affords(10)
    assert not affords(300)
    assert affords(300, price=None)
    assert affords(300, "free", PriceList())
    assert held.left(Kind.DAY) == 300 * 10**6


def test_a_raw_prompt_of_ollamas_may_fill_the_context() -> None:
    body = {"prompt": "a"}
    for fills, output in ((False, 16), (True, 512)):
        assert demand_of([ChatPayload("/v1/completions", body, fills)], 512, 0.0).output == output
