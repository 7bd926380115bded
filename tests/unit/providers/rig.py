"""A gateway with fake providers on real sockets, and a client that calls it without a network."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai

from registry.recipes.provider import Provider
from runtime.gateway.tracing.spans import Spans
from tenants.limits.limiter import Limiter
from tests.eventually import PATIENCE
from tests.fakes.provider import ProviderFake, Script, provider_fake
from tests.unit.http.fakes import FakeGateway, application

KEY = "sk-of-the-operator"
TASKS = ("chat", "embed", "rerank", "transcribe")


def provider(fake: ProviderFake, id_: str = "there", protocol: str = "openai", **more: Any) -> Provider:
    models: list[dict[str, Any]] = [{"name": "big"}]
    if protocol == "openai":
        models += [{"name": task, "task": task} for task in TASKS[1:]]
    times = {"connect": PATIENCE, **more.pop("timeouts", {})}
    given = {
        "id": id_, "version": 1, "protocol": protocol, "base_url": fake.url, "plain_http": True,
        "private_addresses": True, "key_env": "TEST_PROVIDER_KEY", "models": models, "retries": 0,
        "timeouts": times, **more,
    }  # fmt: skip
    return Provider.model_validate(given)


class Rig:
    def __init__(self, gateway: FakeGateway, fakes: list[ProviderFake], http: httpx.AsyncClient, app: Any) -> None:
        self.gateway, self.fakes, self.http, self.app = gateway, fakes, http, app

    @property
    def fake(self) -> ProviderFake:
        return self.fakes[0]

    async def chat(self, model: str = "there/big", **more: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}
        return await self.http.post("/v1/chat/completions", json=body)

    def openai(self) -> openai.AsyncOpenAI:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app))
        return openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=http, max_retries=0)

    def anthropic(self) -> anthropic.AsyncAnthropic:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app))
        return anthropic.AsyncAnthropic(api_key="x", base_url="http://test", http_client=http, max_retries=0)


@asynccontextmanager
async def rigged(folder: Path, script: Script, protocol: str = "openai", **more: Any) -> AsyncIterator[Rig]:
    """Yield a gateway with one provider, `there`."""
    async with rigged_with(folder, {"there": (script, protocol, more)}) as rig:
        yield rig


@asynccontextmanager
async def rigged_with(
    folder: Path,
    scripts: dict[str, tuple[Script, str, dict[str, Any]]],
    tracing: Spans | None = None,
    limiter: Limiter | None = None,
    **given: Any,
) -> AsyncIterator[Rig]:
    """Yield a gateway with providers by id, each with its script, protocol and further fields of its recipe."""
    async with AsyncExitStack() as stack:
        fakes, providers = [], []
        for id_, (script, protocol, more) in scripts.items():
            fakes.append(await stack.enter_async_context(provider_fake(script)))
            providers.append(provider(fakes[-1], id_, protocol, **more))
        gateway = FakeGateway(folder, providers=providers, tracing=tracing, limiter=limiter, **given)
        stack.push_async_callback(gateway.providers.close)
        app = application(gateway)
        transport = httpx.ASGITransport(app=app)
        http = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://test"))
        yield Rig(gateway, fakes, http, app)
