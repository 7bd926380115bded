"""Counts the answered requests of two providers, one of which fails 30 % of the time, with a fall-back.

    python -m tests.faults.providers.run --seconds 300

The providers are fakes on this machine that speak OpenAI's and Anthropic's protocols. Everything between a request's
body and its answer is the server's own, except its socket; a router names the fall-back. A failure is a 500, 429 or
529, a broken connection, garbage, an error event before the first words, or silence. Prints one JSON line; the exit
code is 1 if less than 99.9 % were answered.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from registry.recipes.router import RouterSpec
from registry.state.database import State
from routing.providers import breaker
from routing.providers.breaker import Phase
from routing.routers.content import RouterContent
from tests.fakes import traces
from tests.fakes.provider import CUT, HANG, Play, Script, Seen
from tests.unit.providers.rig import Rig, rigged_with

SHARE, EXPECTED = 0.3, 0.999
WAYS = ("500", "429", "529", "cut", "garbage", "event", "hang")
TIMEOUTS = {"connect": 1.0, "first_byte": 0.5, "between_bytes": 0.5, "whole": 10.0}


def failing(chance: random.Random, share: float) -> Script:
    def play(seen: Seen) -> Play:
        is_stream = bool(seen.body.get("stream"))
        if chance.random() >= share:
            return traces.chat_stream("big") if is_stream else traces.chat("big")
        match chance.choice(WAYS):
            case "cut":
                return Play([b"", CUT])
            case "garbage":
                return Play([b"<html>"])
            case "event" if is_stream:
                error = b'data: {"error": {"message": "no luck", "type": "server_error"}}\n\n'
                return Play([error], content_type=traces.EVENTS)
            case "hang" | "event":
                return Play([HANG])
            case status:
                return traces.error(int(status))

    return play


def well(seen: Seen) -> Play:
    return traces.message_stream("big") if seen.body.get("stream") else traces.message("big")


async def client(rig: Rig, goes_on: Callable[[], bool], seed: int, answers: Counter[str]) -> None:
    chance = random.Random(seed)
    while goes_on():
        stream = chance.random() < 0.5
        found = await rig.chat("auto", stream=stream)
        whole = found.status_code == 200 and "hello" in found.text and (not stream or "[DONE]" in found.text)
        answers["answered" if whole else f"{found.status_code} {found.text[-200:]}"] += 1
        if whole:
            answers[f"by {found.headers['x-roundhouse-model'].partition('/')[0]}"] += 1
        await asyncio.sleep(chance.uniform(0.02, 0.1))


async def run(
    seconds: float, clients: int, seed: int, share: float = SHARE, *, until_open: bool = False
) -> dict[str, Any]:
    """until_open: longer than `seconds` where it takes longer until the breaker has opened and both have answered."""
    answers: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    wrong: list[str] = []
    seen = Phase.CLOSED
    allowed = {
        (Phase.CLOSED, Phase.OPEN), (Phase.OPEN, Phase.HALF_OPEN), (Phase.HALF_OPEN, Phase.OPEN),
        (Phase.HALF_OPEN, Phase.CLOSED),
    }  # fmt: skip
    ended = breaker.ended
    admit = breaker.admit

    def watch(before: Phase, after: Phase) -> None:
        nonlocal seen
        if before is not after:
            phases[f"{before} to {after}"] += 1
            if (before, after) not in allowed:
                wrong.append(f"{before} to {after}")
            seen = after

    def admitted(state: Any, now: float) -> Any:
        found = admit(state, now)
        watch(state.phase, found[0].phase)
        return found

    def at_end(state: Any, *more: Any) -> Any:
        found = ended(state, *more)
        watch(state.phase, found.phase)
        return found

    router = {"id": "auto", "targets": [{"name": "first/big"}, {"name": "second/big"}], "default": "first/big",
              "fallbacks": ["second/big"]}  # fmt: skip
    scripts: Any = {
        "first": (failing(random.Random(seed), share), "openai", {"timeouts": TIMEOUTS, "retries": 1}),
        "second": (well, "anthropic", {}),
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        State(Path(folder) / "state") as state,
        patch.multiple(breaker, admit=admitted, ended=at_end),
    ):
        async with rigged_with(Path(folder), scripts, state=state) as rig:
            await rig.gateway.routers.add(RouterContent(RouterSpec.model_validate(router)), "test")
            until = time.monotonic() + seconds

            def goes_on() -> bool:
                is_open = phases["closed to open"] and answers["by first"] and answers["by second"]
                return time.monotonic() < until or (until_open and not is_open)

            async with asyncio.TaskGroup() as group:
                for number in range(clients):
                    group.create_task(client(rig, goes_on, seed + number, answers))
            requested = [len(fake.seen) for fake in rig.fakes]
    failed = {name: count for name, count in answers.items() if name != "answered" and not name.startswith("by ")}
    total = answers["answered"] + sum(failed.values())
    return {
        "seconds": seconds, "clients": clients, "requests": total, "answered": answers["answered"] / max(1, total),
        "by": {name[3:]: count for name, count in answers.items() if name.startswith("by ")}, "failed": failed,
        "asked": {"first": requested[0], "second": requested[1]}, "breaker": dict(phases), "not_in_the_table": wrong,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault("TEST_PROVIDER_KEY", "x")
    found = asyncio.run(run(given.seconds, given.clients, given.seed))
    print(json.dumps(found))
    return 0 if found["answered"] >= EXPECTED and not found["not_in_the_table"] else 1


if __name__ == "__main__":
    sys.exit(main())
