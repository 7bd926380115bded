"""Calls that arrive while their adapter is being placed, on the real vLLM."""

import asyncio
import random

import pytest

from models.chat.adapters import EngineAdapters
from models.messages import AdapterRef
from registry.errors import EngineFailed
from tests.contract.chat.nasty import TEXT
from tests.contract.chat_engine.bench import PLACES, Bench
from tests.eventually import PATIENCE

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]


def adapters_of(bench: Bench) -> EngineAdapters:
    adapters = bench.engine._adapters
    assert adapters is not None
    return adapters


async def until_waits(bench: Bench, ref: AdapterRef) -> None:
    """Wait until vLLM has rendered the call, which then waits for its adapter."""
    arrival = adapters_of(bench).arrival(ref.digest)
    assert arrival is not None
    async with asyncio.timeout(PATIENCE):
        while not arrival._callbacks or len(arrival._callbacks) < 2:  # ours and the call's
            await asyncio.sleep(0.005)


async def test_a_call_behind_its_placement_waits_and_gets_the_adapters_answer(bench: Bench) -> None:
    await bench.hold()
    ref = bench.adapters[0]
    await bench.engine.stage(ref)
    async with adapters_of(bench)._places:  # the copy cannot begin
        placing = asyncio.create_task(bench.engine.place(ref, None))
        await asyncio.sleep(0)
        behind = asyncio.create_task(bench.greedy("behind its placement", ref))
        await until_waits(bench, ref)
        assert bench.unfinished() == 0, "it is not in vLLM's engine yet"
        prompt, answer = await bench.greedy("a bystander", None)
        assert bench.oracle.agrees(None, prompt, answer)
        assert not behind.done()
    await placing
    prompt, answer = await behind
    assert bench.oracle.agrees(ref, prompt, answer)
    assert not bench.oracle.agrees(None, prompt, answer)


async def test_a_failed_placement_fails_only_the_calls_that_wait_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.hold()
    ref, other = bench.adapters[:2]
    await bench.engine.stage(ref)
    await bench.engine.stage(other)
    gate, place = asyncio.Event(), EngineAdapters._place

    async def broken(self: EngineAdapters, adapter: AdapterRef, evict: str | None) -> None:
        if adapter == ref:
            await gate.wait()
            raise EngineFailed("the copy failed")
        await place(self, adapter, evict)

    monkeypatch.setattr(EngineAdapters, "_place", broken)
    placing = [asyncio.create_task(bench.engine.place(one, None)) for one in (ref, other)]
    await asyncio.sleep(0)
    behind = asyncio.create_task(bench.greedy("behind its placement", ref))
    beside = asyncio.create_task(bench.greedy("beside it", other))
    await until_waits(bench, ref)
    gate.set()
    with pytest.raises(EngineFailed, match=r"could not be loaded: the copy failed") as error:
        await behind
    assert error.value.code == "adapter_failed"
    with pytest.raises(EngineFailed, match="the copy failed"):
        await placing[0]
    prompt, answer = await beside
    assert bench.oracle.agrees(other, prompt, answer)
    with pytest.raises(EngineFailed, match="not in the engine"):
        await bench.greedy("after it", ref)
    monkeypatch.undo()
    await bench.engine.place(ref, None)
    prompt, answer = await bench.greedy("once more", ref)
    assert bench.oracle.agrees(ref, prompt, answer)


async def test_a_client_that_disconnects_while_its_adapter_is_placed_leaves_nothing(bench: Bench) -> None:
    await bench.hold()
    ref, before = bench.adapters[0], bench.registered()
    await bench.engine.stage(ref)
    async with adapters_of(bench)._places:
        placing = asyncio.create_task(bench.engine.place(ref, None))
        await asyncio.sleep(0)
        call = bench.begin(TEXT, {"prompt": "x", "max_tokens": 4}, ref)
        first = asyncio.ensure_future(anext(call))
        await until_waits(bench, ref)
        first.cancel()
        await asyncio.wait([first])
        assert not adapters_of(bench).calls[ref.digest]
    await placing
    assert bench.registered() == before
    prompt, answer = await bench.greedy("the next one", ref)
    assert bench.oracle.agrees(ref, prompt, answer)


async def test_calls_right_behind_swaps_are_never_answered_by_other_weights(bench: Bench) -> None:
    await bench.hold(*bench.adapters[:PLACES])
    chance, placed = random.Random(7), list(bench.adapters[:PLACES])
    for number in range(30):
        newcomer = chance.choice([ref for ref in bench.adapters[: PLACES + 2] if ref not in placed])
        victim = placed.pop(chance.randrange(len(placed)))
        await bench.engine.stage(newcomer)
        placing = asyncio.create_task(bench.engine.place(newcomer, victim.digest))
        await asyncio.sleep(0)
        stays = chance.choice(placed)
        named = (newcomer, None, stays, newcomer)
        answers = await asyncio.gather(*(bench.greedy(f"swap {number}", ref, 8) for ref in named))
        for ref, (prompt, answer) in zip(named, answers, strict=True):
            assert bench.oracle.agrees(ref, prompt, answer), (number, ref)
        await placing
        await bench.engine.drop(victim.digest)
        placed.append(newcomer)
