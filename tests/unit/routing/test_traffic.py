"""Requests are routed as `POST /v1/route` explains.

TRAFFIC=10000 compares more requests.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from models.messages import Chunk, EmbedResult, Event, ResponseEnd, ResponseStart, Usage
from registry.recipes.definition import Recipe
from registry.state.database import State
from routing.intents.model import to_bytes
from routing.routers.content import RouterContent
from runtime.gateway.routing import dispatcher
from runtime.http.middleware import set_caller
from runtime.residency.states import ModelState
from tenants.caller import EVERYBODY, Caller, ServiceClass
from tenants.limits.limiter import Limiter
from tenants.limits.records import Kind, Limit
from tests.fakes import traces
from tests.fakes.provider import provider_fake
from tests.unit.http.fakes import FakeGateway, Wire, application, recipe
from tests.unit.providers.rig import provider
from tests.unit.routing.made import body, routers

ANSWER: list[Event] = [ResponseStart(200, "application/json"), Chunk(b"{}"), ResponseEnd(Usage(5, 2))]
REQUESTS = int(os.environ.get("TRAFFIC", "1000"))
LOCAL = ("small", "big", "cold")
CALLERS = (
    EVERYBODY,
    Caller("poor"),
    Caller("blind", models=("small", "far/*")),
    Caller("patient", service_class=ServiceClass.BATCH, ceiling=ServiceClass.INTERACTIVE),
)


class Calling:
    """Sets the caller, like the layer of keys."""

    def __init__(self, app: ASGIApp, who: list[Caller]) -> None:
        self.app, self.who = app, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            set_caller(scope, self.who[0])
        await self.app(scope, receive, send)


def vector(request: Any) -> Sequence[Event]:
    found = np.random.default_rng(len(request.inputs[0])).normal(size=8).astype("<f4")
    data = (found / np.linalg.norm(found)).tobytes()
    return [EmbedResult(vectors=data, dimensions=8, tokens=[1]), ResponseEnd(Usage(1))]


def recipes() -> list[Recipe]:
    return [*(recipe(name, "chat") for name in LOCAL), recipe("vectors", "embed")]


async def requested(app: Any, path: str, sent: Any, headers: dict[str, str]) -> tuple[int, Any]:
    """Return status and JSON of a request over bare ASGI, which is fast."""
    wire = Wire(app, path, [json.dumps(sent).encode()], headers)
    await wire.run()
    return wire.sent[0]["status"], json.loads(b"".join(part.get("body", b"") for part in wire.sent))


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_requests_are_routed_as_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are requested over HTTP, with changing models, a spent budget, restricted keys and conversations."""
    monkeypatch.setenv("TEST_PROVIDER_KEY", "sk")
    monkeypatch.setattr(dispatcher, "VECTOR_SECONDS", 60.0)  # on a busy machine one of them would do without the vector
    rng, reasons, limiter, who = Random(10_000), set[str](), Limiter(), [EVERYBODY]
    limiter.replace([Limit("poor", "team", "poor", Kind.DAY, 2_000_000_000)], {})
    with State(tmp_path / "state") as state:
        async with provider_fake(lambda _: traces.chat("big")) as fake:
            models = [{"name": "big", "aliases": ["away"], "abilities": ["tools"], "price": {"output": 100}}]
            away = provider(fake, "far", models=models)
            gateway = FakeGateway(tmp_path, recipes(), state=state, providers=[away], limiter=limiter)
            for name, link in gateway.links.items():
                link.script = vector if name == "vectors" else lambda _: ANSWER
            for router in routers():
                fitted = () if router.intents is None else (("intents", to_bytes(router.intents)),)
                await gateway.routers.add(RouterContent(router.spec, fitted), "test")  # type: ignore[arg-type]
            app = application(gateway, [(Calling, {"who": who})])
            for number in range(REQUESTS):
                who[0] = rng.choice(CALLERS)
                gateway.providers.serve([away] if rng.random() < 0.8 else [])
                for name in ("small", "big", "vectors"):
                    gateway.entries[name].state = rng.choice((ModelState.READY, ModelState.ABSENT))
                path, sent = body(rng)
                sent["model"] = f"r{rng.randrange(3)}"
                headers = {"x-plan": rng.choice(("gold", "iron"))} if rng.random() < 0.3 else {}
                if rng.random() < 0.2:
                    headers["X-Conversation-Id"] = f"c{rng.randrange(50)}"
                if rng.random() < 0.1:
                    headers["X-Tier"] = rng.choice(("batch", "critical"))
                status, full_reason = await requested(app, "/v1/route", {**sent, "endpoint": path}, headers)
                found = await requested(app, path, sent, headers)
                record = gateway.records.all.pop()
                if status != 200:
                    assert (found[0], record.code) == (status, full_reason["error"]["code"])
                    continue
                assert record.target is not None, (number, found)
                assert record.target.routed is not None
                decision = record.target.routed.decision
                assert full_reason == {
                    "object": "route",
                    "router": record.target.routed.router,
                    "target": decision.target,
                    "reason": decision.full_reason,
                    "score": decision.score,
                    "scores": decision.scores,
                    "alternatives": list(decision.alternatives),
                    "fallbacks": list(decision.fallbacks),
                    "saw": decision.saw,
                }, (number, path, sent, headers)
                reasons.add(decision.full_reason)
            await gateway.providers.close()
    seen = {"rule:gold", "rule:patient", "rule:tools", "rule:long", "conversation", "intent:weather", "intent:money"}
    assert seen | {"abstained", "state"} <= reasons
