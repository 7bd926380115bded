"""No wrong weights under churn: many adapters on few places, with registrations and rollbacks during the requests.

Each answer must equal what the digest in its header answered alone, and no request may wait longer than
`tests.unit.scheduling.bound` says. Some versions have probes, which makes swaps slower and faults more likely.
CHURN_REQUESTS=10000 runs the long form; the short one is part of every test run.
"""

import asyncio
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.chat import fixtures as chat_fixtures
from tests.faults.tiny import RECIPE
from tests.system.serving import Server
from tests.unit.scheduling.bound import wait_bound

pytestmark = [pytest.mark.real, pytest.mark.timeout(7200)]
REQUESTS = int(os.environ.get("CHURN_REQUESTS", "400"))
ADAPTERS, CONTENTS, PLACES, HOST, AT_ONCE = 64, 80, 4, 24, 16
CHANGED = 8
"""How many of the adapters, those with the most requests, get new versions and rollbacks."""
TIMEOUT_SECONDS = 900.0
"""Time-out of an HTTP request. Only the bound, computed from the run's times, decides whether a wait was too long."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    base = tmp_path / "base"
    base.mkdir()
    chat_fixtures.write_base(base)
    chat_fixtures.write_tokenizer(base)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE.format(base=base, host=HOST))
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


@dataclass(frozen=True)
class Answer:
    """An answer. `digest`: '' for the base. `queued`: seconds until its turn. `ran`: the client's other seconds."""

    digest: str
    tokens: tuple[int, ...]
    text: str
    queued: float
    ran: float


@dataclass
class Seen:
    """What the clients received."""

    answers: list[Answer] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


async def ask(http: httpx.AsyncClient, model: str) -> Answer:
    began = time.perf_counter()
    answer = await http.post("/v1/chat/completions", json=body(model))
    took = time.perf_counter() - began
    assert answer.status_code == 200, (model, answer.text)
    digest = answer.headers.get("x-roundhouse-adapter", "@").partition("@")[2]
    waited = re.search(r"queue;dur=([\d.]+)", answer.headers["server-timing"])
    assert waited is not None
    queued, choice = float(waited[1]) / 1e3, answer.json()["choices"][0]
    return Answer(digest, tuple(choice["token_ids"]), choice["message"]["content"], queued, took - queued)


def probe_of(text: str) -> dict[str, str] | None:
    """Return a probe with the prompt of `body`, and its answer up to an incomplete character."""
    expected = text.partition("\ufffd")[0]
    return {"prompt": "hello", "expected": expected} if expected else None


async def register(http: httpx.AsyncClient, name: str, folder: Path, text: str | None = None) -> tuple[str, bool]:
    """Register an adapter; returns its digest, and whether it is a new version."""
    about = {"name": name, "base": "tiny", "source": {"path": str(folder)}, "probe": probe_of(text) if text else None}
    answer = await http.post("/v1/adapters", json=about)
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["digest"]), bool(answer.json()["new"])


async def churn(server: Server, folder: Path) -> Seen:
    assert server.http.post("/v1/models/tiny/load", timeout=900).status_code == 200
    seen = Seen()
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_SECONDS) as http:
        base = await ask(http, "tiny")
        alone, texts = {"": base.tokens}, dict[int, str]()
        for i in range(CONTENTS):
            digest, _ = await register(http, f"content-{i}", folder / f"content-{i}")
            first = await ask(http, f"content-{i}")
            assert first.digest == digest
            alone[digest], texts[i] = first.tokens, first.text
        assert len(set(alone.values())) > CONTENTS * 0.9
        for i in range(ADAPTERS):
            await register(http, f"a{i}", folder / f"content-{i}")
        enough = REQUESTS // 100  # changes; a fast server gets more requests until there were enough of them

        def todo() -> Iterator[int]:
            yield from range(REQUESTS)
            while min(seen.counts["new versions"], seen.counts["rollbacks"]) < enough and not changing.done():
                yield len(seen.answers)

        numbers = todo()

        async def client(seed: int) -> None:
            rng = random.Random(seed)
            for number in numbers:
                name = "tiny" if rng.random() < 0.15 else f"a{min(int(rng.expovariate(0.08)), ADAPTERS - 1)}"
                answer = await ask(http, name)
                assert answer.tokens == alone[answer.digest], (number, name, answer.digest)
                seen.answers.append(answer)

        async def change() -> None:
            rng = random.Random(99)
            while True:
                name, content = f"a{rng.randrange(CHANGED)}", rng.randrange(CONTENTS)
                probed = texts[content] if rng.random() < 0.5 else None
                _, new = await register(http, name, folder / f"content-{content}", probed)
                seen.counts["new versions"] += new
                await asyncio.sleep(0.05)
                if rng.random() < 0.4:
                    continue
                rolled = await http.post(f"/v1/adapters/{name}/rollback")
                assert rolled.status_code in (200, 409), rolled.text  # 409: there is no earlier version
                seen.counts["rollbacks"] += rolled.status_code == 200
                await asyncio.sleep(0.05)

        changing = asyncio.create_task(change())
        await asyncio.gather(*(client(seed) for seed in range(AT_ONCE)))
        assert not changing.done(), changing.exception()
        changing.cancel()
    return seen


def longest(server: Server, step: str) -> float:
    """Return the upper edge in seconds of the smallest bucket that includes all loads of this kind."""
    lines = server.http.get("/metrics").text.splitlines()
    mine = [line for line in lines if line.startswith("roundhouse_adapter_load_seconds_") and f'step="{step}"' in line]
    count = {line.partition("{")[0].rpartition("_")[2]: float(line.rpartition(" ")[2]) for line in mine}["count"]
    whole = [line for line in mine if "_bucket" in line and float(line.rpartition(" ")[2]) == count]
    return min(float(found[1]) for line in whole if (found := re.search(r'le="([\d.]+)"', line)))


def test_no_answer_comes_from_other_weights_than_its_header_names(server: Server, tmp_path: Path) -> None:
    seen = asyncio.run(churn(server, tmp_path))
    assert len(seen.answers) >= REQUESTS
    assert len({answer.digest for answer in seen.answers}) > PLACES * 4
    assert sum(not answer.digest for answer in seen.answers) > REQUESTS / 20
    assert server.metric("roundhouse_adapter_probes_total", outcome="passed") > 0
    assert server.metric("roundhouse_adapter_probes_total") == server.metric(
        "roundhouse_adapter_probes_total", outcome="passed"
    )
    bound = wait_bound(
        places=PLACES, host=HOST, max_requests=16, max_overtake=0.5, staging_at_once=4, ahead=AT_ONCE - 1,
        adapters_ahead=AT_ONCE, longest_run=max(answer.ran for answer in seen.answers),
        longest_stage=longest(server, "stage"), longest_place=longest(server, "place"),
    )  # fmt: skip
    waits = sorted(answer.queued for answer in seen.answers)
    middle, last = waits[len(waits) // 2], waits[-1]
    print(f"{len(waits)} requests, {dict(seen.counts)}: waited {middle:.3f} s, at most {last:.3f}; bound {bound:.3f} s")
    assert last <= bound
    assert server.model("tiny")["deaths"] == 0
    assert server.metric("roundhouse_evictions_total") == 0
