"""No wrong weights under churn: many adapters on few places, re-registered and rolled back meanwhile.

Each answer is compared with what the digest that its header names answered alone. CHURN_REQUESTS=10000 runs the long
form; the short one runs in every test run.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract import chat_fixtures
from tests.system.serving import Server

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
REQUESTS = int(os.environ.get("CHURN_REQUESTS", "400"))
ADAPTERS, CONTENTS, PLACES, AT_ONCE = 64, 80, 4, 16
WAIT_BOUND_SECONDS = 60.0

RECIPE = """
id: tiny
version: 1
task: chat
source: {{path: {base}}}
engine: {{name: vllm}}
dtype: float32
context_length: 512
memory: {{kv_cache: 64MiB, adapters: {{device: 4, host: 24, max_rank: 16}}}}
batching: {{max_requests: 16, max_tokens: 2048}}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    base = tmp_path / "base"
    base.mkdir()
    chat_fixtures.write_base(base)
    chat_fixtures.write_tokenizer(base)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE.format(base=base))
    for i in range(CONTENTS):
        chat_fixtures.write_adapter(tmp_path / f"content-{i}", i)
    server = Server(tmp_path / "data", [recipe], "--slots", "2")
    try:
        yield server.wait_ready()
    finally:
        server.close()


def body(model: str) -> dict[str, Any]:
    return {
        "model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "temperature": 0,
        "logprobs": False, "return_token_ids": True,
    }  # fmt: skip


async def ask(http: httpx.AsyncClient, model: str) -> tuple[str, tuple[int, ...]]:
    """The digest that the response names ('' for the base), and the answer's token ids."""
    answer = await http.post("/v1/chat/completions", json=body(model))
    assert answer.status_code == 200, (model, answer.text)
    label = answer.headers.get("x-roundhouse-adapter", "@")
    return label.partition("@")[2], tuple(answer.json()["choices"][0]["token_ids"])


async def register(http: httpx.AsyncClient, name: str, folder: Path) -> str:
    answer = await http.post("/v1/adapters", json={"name": name, "base": "tiny", "source": {"path": str(folder)}})
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["digest"])


async def churn(server: Server, folder: Path) -> None:
    assert server.http.post("/v1/models/tiny/load", timeout=300).status_code == 200
    async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_BOUND_SECONDS) as http:
        alone: dict[str, tuple[int, ...]] = {"": (await ask(http, "tiny"))[1]}
        for i in range(CONTENTS):
            digest = await register(http, f"content-{i}", folder / f"content-{i}")
            alone[digest] = (await ask(http, f"content-{i}"))[1]
        assert len(set(alone.values())) > CONTENTS * 0.9
        for i in range(ADAPTERS):
            await register(http, f"a{i}", folder / f"content-{i}")

        todo = iter(range(REQUESTS))
        served: set[str] = set()

        async def client(seed: int) -> None:
            rng = random.Random(seed)
            for number in todo:
                name = "tiny" if rng.random() < 0.15 else f"a{min(int(rng.expovariate(0.08)), ADAPTERS - 1)}"
                digest, tokens = await ask(http, name)
                assert tokens == alone[digest], (number, name, digest)
                served.add(digest)

        async def change() -> None:
            rng = random.Random(99)
            while True:
                name = f"a{rng.randrange(8)}"
                await register(http, name, folder / f"content-{rng.randrange(CONTENTS)}")
                await asyncio.sleep(0.05)
                rolled = await http.post(f"/v1/adapters/{name}/rollback")
                assert rolled.status_code in (200, 409), rolled.text
                await asyncio.sleep(0.05)

        changing = asyncio.create_task(change())
        await asyncio.gather(*(client(seed) for seed in range(AT_ONCE)))
        assert not changing.done(), changing.exception()
        changing.cancel()
        assert len(served) > PLACES * 4


def test_no_answer_comes_from_other_weights_than_its_header_names(server: Server, tmp_path: Path) -> None:
    asyncio.run(churn(server, tmp_path))
    assert server.model("tiny")["deaths"] == 0
    assert server.metric("roundhouse_evictions_total") == 0
