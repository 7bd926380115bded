"""Probes of adapters run before any request, and a wrong answer affects only its adapter."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.errors import Unavailable
from registry.records import Probe
from runtime.scheduling.fair import QueueRequest
from runtime.scheduling.probes import RETRY_SECONDS
from tenants.caller import ServiceClass
from tests.unit.scheduling.adapter_line import RIGHT, WRONG, World, adapter, ask, dropped, line_with_adapters


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with line_with_adapters(tmp_path) as world:
        yield world


def probe_count(w: World) -> list[tuple[str, str]]:
    return [note for note in w.registry.notes if note[0] == "probe"]


async def test_a_probe_runs_after_each_placement_and_before_any_request(world: World) -> None:
    world.registry.known[adapter("a").digest] = (RIGHT,)
    assert await ask(world, adapter("a"), RIGHT) == 5
    assert world.engine.answered[0] == ("probe", adapter("a").digest)
    assert await ask(world, adapter("a"), RIGHT) == 5
    assert probe_count(world) == [("probe", "passed")]
    for letter in "bc":  # takes its place
        assert await ask(world, adapter(letter)) == 5
    assert await ask(world, adapter("a"), RIGHT) == 5
    assert probe_count(world) == [("probe", "passed")] * 2
    a, b, c = (adapter(letter).digest for letter in "abc")
    assert world.registry.swaps == [(a, None), (b, None), (c, a), (a, b)]


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([ServiceClass.BATCH], ServiceClass.BATCH),
        ([ServiceClass.BATCH, ServiceClass.INTERACTIVE], ServiceClass.INTERACTIVE),
        ([ServiceClass.INTERACTIVE, ServiceClass.CRITICAL], ServiceClass.CRITICAL),
    ],
)
async def test_a_probe_has_the_highest_class_of_its_waiting_requests(
    world: World, classes: list[ServiceClass], expected: ServiceClass
) -> None:
    """A critical probe shortens every step of the engine."""
    world.registry.known[adapter("a").digest] = (RIGHT,)
    claims = [QueueRequest(service_class=each) for each in classes]
    await asyncio.gather(*(ask(world, adapter("a"), RIGHT, claim) for claim in claims))
    assert world.engine.probe_priorities == [expected]


async def test_a_probe_of_a_pinned_adapter_has_the_lowest_class(world: World) -> None:
    world.registry.known[adapter("a").digest] = (RIGHT,)
    world.queue.pin_adapter(adapter("a"))
    async with asyncio.timeout(200):
        while not world.registry.swaps:
            await asyncio.sleep(0.001)
    assert world.engine.probe_priorities == [ServiceClass.BATCH]


async def test_a_wrong_probe_drops_the_adapter_and_refuses_only_its_requests(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG,)
    results = await asyncio.gather(
        ask(world, adapter("a"), WRONG), ask(world, adapter("b")), ask(world, adapter("a"), WRONG), ask(world, None),
        return_exceptions=True,
    )  # fmt: skip
    assert results[1] == results[3] == 5
    for failed in (results[0], results[2]):
        assert isinstance(failed, Unavailable)
        assert failed.code == "adapter_probe_failed"
        assert failed.retry_after is not None
        assert "'other'" in failed.message
        assert "the answer began with 'f" in failed.message  # up to the first letter that differs
        assert RIGHT.prompt not in failed.message
    assert ("probe", "failed") in world.registry.notes
    await dropped(world, adapter("a"))
    assert world.engine.places == {adapter("b").digest}
    assert adapter("a").digest not in [digest for kind, digest in world.engine.answered if kind == "call"]


async def test_an_adapter_with_a_failed_probe_is_not_staged_until_the_retry(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG,)
    for _ in range(3):
        with pytest.raises(Unavailable, match="probe"):
            await ask(world, adapter("a"), WRONG)
    assert world.engine.staged.count(adapter("a").digest) == 1
    world.clock += RETRY_SECONDS + 1
    with pytest.raises(Unavailable, match="probe"):
        await ask(world, adapter("a"), WRONG)
    assert world.engine.staged.count(adapter("a").digest) == 2
    world.registry.known[adapter("a").digest] = (RIGHT,)  # registered again with a corrected probe
    assert await ask(world, adapter("a"), RIGHT) == 5


async def test_a_wrong_probe_of_one_name_does_not_affect_another_with_equal_content(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG, None)
    results = await asyncio.gather(ask(world, adapter("a"), WRONG), ask(world, adapter("a")), return_exceptions=True)
    assert isinstance(results[0], Unavailable)
    assert results[1] == 5
    assert adapter("a").digest in world.engine.places


async def test_a_probe_added_after_the_placement_runs_with_its_first_request(world: World) -> None:
    assert await ask(world, adapter("a")) == 5
    assert probe_count(world) == []
    results = await asyncio.gather(*(ask(world, adapter("a"), WRONG) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
    assert await ask(world, adapter("a"), RIGHT) == 5
    assert world.queue.running == 0
    assert [kind for kind, _ in world.engine.answered].count("probe") == 2


async def test_a_probe_that_the_engine_cannot_answer_fails_the_adapter(world: World) -> None:
    world.registry.known[adapter("a").digest] = (RIGHT,)
    world.engine.probe_status = 400
    with pytest.raises(Unavailable, match="HTTP 400"):
        await ask(world, adapter("a"), RIGHT)
    assert await ask(world, None) == 5


async def test_a_new_engine_is_probed_again(world: World) -> None:
    world.registry.known[adapter("a").digest] = (WRONG,)
    with pytest.raises(Unavailable):
        await ask(world, adapter("a"), WRONG)
    world.queue.engine_gone()
    world.engine.places.clear()
    world.engine.staged.clear()
    world.engine.probe_answer = "other words"  # longer than expected
    world.queue.open(world.link)
    assert await ask(world, adapter("a"), WRONG) == 5


async def test_the_results_of_changed_probes_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A team may register the same content with another probe again and again."""
    monkeypatch.setattr("runtime.scheduling.probes.MOST_RESULTS", 2)
    found = [Probe(f"say it {number}", "fine") for number in range(4)]
    async with line_with_adapters(tmp_path) as world:
        world.registry.known[adapter("a").digest] = (found[0],)
        for probe in found:
            assert await ask(world, adapter("a"), probe) == 5
        probes = world.queue.effects.probes
        assert [probes.result(adapter("a").digest, probe) is not None for probe in found] == [False, False, True, True]
