"""The states of an engine in its slot's process, as in the table of `models.protocol`."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from models import lifecycle
from models.lifecycle import EngineState, Lifecycle
from models.messages import MemoryFootprint, Progress
from registry.errors import BadRequest, EngineFailed
from registry.recipes.definition import Recipe

RECIPE = Recipe.model_validate(
    {"id": "m", "version": 1, "task": "embed", "source": {"package": "p"}, "engine": {"name": "sentence-transformers"}}
)
FOOTPRINT = MemoryFootprint(device_bytes=1, host_bytes=2)


class Engine:
    """An engine whose load and sleep do what a test gives it."""

    def __init__(self) -> None:
        self.life, self.reports, self.closed = Lifecycle("test"), list[Progress](), 0

    async def close(self) -> None:
        self.closed += 1
        self.life.close()

    async def load(self, work: Callable[[], None] = lambda: None) -> dict[str, float]:
        async with self.life.loading(RECIPE, self.reports.append, self.close) as phases:
            for name in ("weights", "warming", "weights"):
                with phases.phase(name, 0.5, "detail"):  # type: ignore[arg-type]
                    work()
        return phases.seconds


class Sleeper:
    def __init__(self, work: Callable[[], None] = lambda: None) -> None:
        self._work = work

    async def down(self) -> MemoryFootprint:
        self._work()
        return FOOTPRINT

    up = down


def fail(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


async def test_a_load_reports_its_phases_and_ends_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 12.0, 12.0, 15.0, 15.0, 20.5))
    monkeypatch.setattr(lifecycle, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    engine = Engine()
    with pytest.raises(EngineFailed, match="the test engine is new"):
        engine.life.check()
    seconds = await engine.load()
    engine.life.check()
    assert seconds == {"weights": 7.5, "warming": 3.0}
    assert [(one.phase, one.fraction) for one in engine.reports] == [
        ("weights", 0.5), ("warming", 0.5), ("weights", 0.5), ("ready", 1.0),
    ]  # fmt: skip
    assert not engine.closed
    with pytest.raises(EngineFailed, match="used before"):
        await engine.load()
    engine.life.check()


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [(ValueError("x"), EngineFailed, "m could not be loaded: ValueError: x"), (BadRequest("y"), BadRequest, "^y")],
)
async def test_a_failed_load_closes_the_engine(error: Exception, raised: type[Exception], words: str) -> None:
    engine = Engine()
    with pytest.raises(raised, match=words):
        await engine.load(fail(error))
    assert (engine.closed, engine.life.state) == (1, EngineState.CLOSED)
    assert "ready" not in [one.phase for one in engine.reports]


async def test_an_engine_that_is_closed_while_it_loads_never_counts_as_loaded() -> None:
    engine = Engine()
    with pytest.raises(EngineFailed, match="closed while it loaded"):
        await engine.load(engine.life.close)
    assert engine.life.state is EngineState.CLOSED


async def test_a_sleeping_engine_is_alive_and_serves_only_once_awake() -> None:
    engine, sleeper = Engine(), Sleeper()
    calls: tuple[Callable[[Sleeper | None], Awaitable[MemoryFootprint]], ...] = (engine.life.sleep, engine.life.wake)
    for call in calls:
        with pytest.raises(EngineFailed, match="the test engine is new"):
            await call(sleeper)
    await engine.load()
    with pytest.raises(EngineFailed, match="cannot sleep"):
        await engine.life.sleep(None)
    with pytest.raises(EngineFailed, match="the test engine is loaded"):
        await engine.life.wake(sleeper)
    engine.life.check_alive()
    assert await engine.life.sleep(sleeper) == FOOTPRINT
    engine.life.check_alive()
    for refused in (engine.life.sleep(sleeper), engine.life.wake(None)):
        with pytest.raises(EngineFailed, match="the test engine is asleep"):
            await refused
    with pytest.raises(EngineFailed, match="the test engine is asleep"):
        engine.life.check()
    assert await engine.life.wake(sleeper) == FOOTPRINT
    engine.life.check()


@pytest.mark.parametrize("step", ["sleep", "wake"])
@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [(ValueError("x"), EngineFailed, "the engine failed: ValueError: x"), (BadRequest("y"), BadRequest, "^y")],
)
async def test_a_failed_sleep_or_wake_breaks_the_engine(
    step: str, error: Exception, raised: type[Exception], words: str
) -> None:
    engine = Engine()
    await engine.load()
    if step == "wake":
        await engine.life.sleep(Sleeper())
    with pytest.raises(raised, match=words):
        await getattr(engine.life, step)(Sleeper(fail(error)))
    for check in (engine.life.check, engine.life.check_alive):
        with pytest.raises(EngineFailed, match="the test engine is broken"):
            check()


async def test_an_engine_that_is_closed_while_it_falls_asleep_stays_closed() -> None:
    engine = Engine()
    await engine.load()
    with pytest.raises(EngineFailed, match="was closed"):
        await engine.life.sleep(Sleeper(engine.life.close))
    assert engine.life.state is EngineState.CLOSED
