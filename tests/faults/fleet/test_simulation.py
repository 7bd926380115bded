"""Compares three real servers behind a front with the simulation, for the same traffic and an engine of the same times.

Only runs with FLEET_SIMULATION=1, because it takes two and a half minutes and most of two cores.

The node of a request depends on the requests before, so the same traffic with other ids finds another share of its
adapters ready: in 60 seconds the simulated shares differ by 1.5 points (standard deviation). Therefore the test takes
two minutes and compares with the mean of several simulated runs.
"""

import asyncio
import os
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from benchmarks.adapters.pair import register
from benchmarks.fleet.servers import Front, ScriptedNode, database, has_postgres, node_options, wait_until
from benchmarks.load.client import Connection, Reply, connect, request_bytes
from benchmarks.load.clients import TIMEOUT, on_loop
from benchmarks.load.stats import percentile
from benchmarks.peers.servers import start_all
from benchmarks.report.generated import write_adapters, write_model
from benchmarks.streams import scripted_recipe
from fleet.simulation.figures import Figures, figures_of
from fleet.simulation.scenario import Scenario
from fleet.simulation.traffic import SimRequest, SimTraffic
from fleet.simulation.world import WARM_PART, World

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not os.environ.get("FLEET_SIMULATION"), reason="long: FLEET_SIMULATION=1"),
    pytest.mark.skipif(not has_postgres(), reason="apt-get install postgresql"),
]
SCENARIO = Scenario(
    nodes=3, seconds=120.0, fronts=1, models=1, adapters=40, shared_prefix=0.0, flood=0.0, flood_limit=0.0, rack=1,
)  # fmt: skip
RUNS = 8
"""Simulated runs, each with other random ids of requests."""
MODEL = "timed"
HIT_MS = 1.0
_SWAP = re.compile(r"swap;dur=([0-9.]+)")


class TimedNode(ScriptedNode):
    def command(self) -> Sequence[str]:
        words = super().command()
        return ["tests.fakes.timed_server" if word == "benchmarks.peers.scripted_server" else word for word in words]


def recipe(folder: Path) -> Path:
    weights = write_model(folder / "model", hidden=128, ffn=256, layers=2)
    file = scripted_recipe(folder / "recipes", MODEL, weights)
    data = yaml.safe_load(file.read_text())
    data["batching"] = {"max_requests": SCENARIO.at_once}
    data["memory"]["adapters"] = {"device": SCENARIO.places, "host": 64, "max_rank": 8}
    file.write_text(yaml.safe_dump(data))
    return file


def request_of(one: SimRequest, names: Mapping[str, str]) -> bytes:
    body = {
        "model": MODEL if one.digest is None else names[one.digest], "stream": True, "max_tokens": one.answer,
        "messages": [{"role": "user", "content": f"{one.draw}"}], "seed": max(1, round(one.prompt)),
    }  # fmt: skip
    return request_bytes("/v1/chat/completions", body)


async def replay(port: int, requests: Sequence[tuple[float, bytes]]) -> list[Reply]:
    """Send each request at its time, without waiting for earlier ones; returns the replies."""
    loop = asyncio.get_running_loop()
    began, idle = loop.time(), list[Connection]()

    async def ask(request: bytes) -> Reply:
        connection = idle.pop() if idle else await connect(port)
        reply = await connection.ask(request, TIMEOUT)
        if connection.open:
            idle.append(connection)
        return reply

    tasks = []
    for arrival, request in requests:
        await asyncio.sleep(max(0.0, began + arrival - loop.time()))
        tasks.append(asyncio.create_task(ask(request)))
    return list(await asyncio.gather(*tasks))


def is_hit(reply: Reply) -> bool:
    found = _SWAP.search(reply.header("server-timing"))
    assert found is not None, reply.head
    return float(found[1]) <= HIT_MS


def simulated(run: int) -> Figures:
    world, rng = World(SCENARIO), random.Random(run)
    requests = list(world.traffic.arrivals())
    for request in requests:
        request.draw = rng.getrandbits(64)
    world.traffic.arrivals = lambda: iter(requests)  # type: ignore[method-assign]
    world.run()
    return figures_of(world)


def test_three_servers_are_as_the_simulation_says(tmp_path: Path) -> None:
    traffic = SimTraffic(SCENARIO)
    arrivals = list(traffic.arrivals())
    names = {digest: f"adapter-{number}" for number, digest in enumerate(traffic._digests["model-0"])}
    with database(tmp_path) as url, ExitStack() as stack:
        file = recipe(tmp_path)
        options = node_options(1)
        nodes = [TimedNode(f"node-{number}", tmp_path, url, [file], *options) for number in (1, 2, 3)]
        front = Front("front-1", tmp_path, url, "--bounds-factor", "4")
        start_all(stack, [*nodes, front])
        front.wait_for([MODEL], [node.name for node in nodes])
        files = write_adapters(tmp_path / "adapters", tmp_path / "model", len(names), 4)
        for name, folder in zip(names.values(), files, strict=True):
            register(nodes[0], name, folder)
        stores = [node.folder / "data" / "store" for node in nodes]
        wait_until(lambda: all(len(list(one.glob("?" * 64))) == len(names) for one in stores), "adapters are missing")
        requests = [(one.arrived, request_of(one, names)) for one in arrivals]
        replies = on_loop(lambda: replay(front.port, requests))
    assert [reply.error for reply in replies if reply.error is not None] == []
    warm = [
        (one, reply)
        for one, reply in zip(arrivals, replies, strict=True)
        if one.arrived >= WARM_PART * SCENARIO.seconds
    ]
    ttft = percentile([reply.ttft for _, reply in warm], 50)
    hits = [is_hit(reply) for one, reply in warm if one.digest is not None]
    figures = [simulated(run) for run in range(RUNS)]
    hit_part = sum(hits) / len(hits)
    ttft_there = fmean(one.ttft_p50 for one in figures)
    hits_there = fmean(one.adapter_hits for one in figures)
    print(f"TTFT p50 {ttft:.4f} s, simulated {ttft_there:.4f}; hits {hit_part:.4f}, simulated {hits_there:.4f}")
    assert {one.requests for one in figures} == {len(replies)}
    assert abs(ttft - ttft_there) <= 0.2 * ttft_there
    assert abs(hit_part - hits_there) <= 0.03
