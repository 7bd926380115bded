"""Limits of stored adapters: what counts, what is refused, what a removal frees, and concurrent registrations."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.jobs import Job
from adapters.types import Base, CheckedAdapter
from registry.errors import BadRequest, StorageExceeded
from registry.recipes.fields import PathSource
from registry.records import Adapter, AdapterKey, NewVersion
from registry.state.database import State
from tenants.limits import stored
from tenants.limits.records import Kind, Limit, Mode
from tenants.limits.stored import StorageLimiter
from tests.unit.adapters.makers import write_adapter, write_base
from tests.unit.adapters.rig import Rig
from tests.unit.registry.makers import digest

TEAM = "search"


def limit(kind: Kind, amount: int, mode: Mode = Mode.ENFORCE, model: str = "") -> Limit:
    return Limit(f"{kind}-{mode}", "team", TEAM, kind, amount, mode, model)


class Stock:
    """Adapters in a state, registered if the limits admit them."""

    def __init__(self, state: State, *limits: Limit, merged: Mapping[str, int] | None = None) -> None:
        self.state, self.reported = state, list[tuple[str, str]]()
        self.limiter = StorageLimiter(
            lambda one, what: self.reported.append((one.kind, what)), lambda: 0.0, lambda _team: merged or {}
        )
        self.limiter.replace(limits)

    def list(self) -> Sequence[Adapter]:
        return self.state.adapters.all()

    def add(self, name: str, number: int, size: int, team: str = TEAM, base: str = "small") -> tuple[str, ...]:
        key = AdapterKey(base, name, team)
        warnings = self.limiter.admit(key, self.list, digest(number), size)
        self.state.adapters.register(key, NewVersion(digest(number), 8, size, "test"))
        return warnings

    def remove(self, name: str) -> None:
        self.state.adapters.delete(AdapterKey("small", name, TEAM))


def test_a_team_without_its_own_limit_has_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "USUAL_ADAPTERS", 2)
    bytes_only, one_base = limit(Kind.ADAPTER_BYTES, 10**9), limit(Kind.ADAPTERS, 9, model="other")
    with State(tmp_path) as state:
        stock = Stock(state, bytes_only, one_base)
        for number, name in enumerate(("a", "b", "a")):
            stock.add(name, number, 100)
        with pytest.raises(StorageExceeded, match=r"adapters stored of team 'search' is 2, of which 2 are used"):
            stock.add("c", 9, 1)
        stock.add("c", 9, 1, team="another")
        stock.limiter.replace([bytes_only, limit(Kind.ADAPTERS, 3)])
        stock.add("c", 9, 1)


def test_names_count_but_versions_do_not(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        stock = Stock(state, limit(Kind.ADAPTERS, 2))
        for number, name in enumerate(("a", "b", "a")):
            stock.add(name, number, 100)
        for call in (
            lambda: stock.add("c", 9, 1),
            lambda: stock.limiter.check(AdapterKey("small", "c", TEAM), stock.list),
        ):
            with pytest.raises(StorageExceeded, match=r"is 2, of which 2 are used.*adds 1.*limits set") as refused:
                call()
        (one,) = refused.value.binding
        assert (one.kind, one.subject, one.limit, one.remaining, one.seconds) == ("adapters_stored", TEAM, 2, 0, None)
        assert (refused.value.code, refused.value.should_retry) == ("storage_limit_exceeded", False)
        assert stock.reported == [("adapters_stored", "refused")] * 2
        stock.add("c", 9, 1, team="other")
        stock.remove("b")
        stock.add("c", 9, 1)


def test_bytes_count_once_for_equal_content_and_are_freed(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        stock = Stock(state, limit(Kind.ADAPTER_BYTES, 250))
        stock.add("a", 1, 100)
        stock.add("a", 2, 100)
        stock.add("b", 1, 100)
        with pytest.raises(StorageExceeded, match="of which 200 are used; this registration adds 51") as refused:
            stock.add("c", 3, 51)
        assert [one.remaining for one in refused.value.binding] == [50]
        stock.add("c", 3, 50)
        stock.limiter.check(AdapterKey("small", "d", TEAM), stock.list)  # its content may be stored already
        stock.remove("a")  # its first version is also b's
        with pytest.raises(StorageExceeded, match="of which 150 are used"):
            stock.add("d", 4, 101)
        stock.add("d", 4, 100)


def test_a_lowered_limit_refuses_only_additions(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        stock = Stock(state)
        stock.add("a", 1, 100)
        stock.limiter.replace([limit(Kind.ADAPTERS, 0), limit(Kind.ADAPTER_BYTES, 0)])
        stock.add("a", 1, 100)
        with pytest.raises(StorageExceeded) as refused:
            stock.add("b", 2, 100)
        assert {one.kind for one in refused.value.binding} == {"adapters_stored", "adapter_bytes_stored"}
        stock.limiter.replace([])
        stock.add("b", 2, 100)


def test_limits_may_warn_count_or_be_for_one_base(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "roundhouse.tenants")
    with State(tmp_path) as state:
        stock = Stock(
            state,
            limit(Kind.ADAPTERS, 0, Mode.WARN),
            limit(Kind.ADAPTER_BYTES, 0, Mode.SHADOW),
            limit(Kind.ADAPTERS, 1, model="large"),
        )
        assert stock.add("a", 1, 100) == (f"adapters stored of team '{TEAM}': over 0",)
        assert stock.add("b", 2, 100)
        assert len(caplog.records) == 1, "logged once a day"
        assert stock.reported == [("adapters_stored", "warned"), ("adapter_bytes_stored", "shadow")] * 2
        stock.add("a", 1, 100, base="large")
        with pytest.raises(StorageExceeded, match="on 'large'"):
            stock.add("b", 1, 100, base="large")


def test_a_key_stores_nothing() -> None:
    with pytest.raises(BadRequest, match="adapters belong to teams"):
        Limit("", "key", "key00001", Kind.ADAPTERS, 1)


class InstantChecker:
    """Uses a folder's name as its content, and yields so that registrations interleave."""

    async def check(self, job: Job) -> CheckedAdapter:
        await asyncio.sleep(0)
        number = int(job.source.name)
        assert job.out is not None
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (job.out / name).write_bytes(b"%d" % number)
        hexed = hashlib.sha256(b"%d" % number).hexdigest()
        return CheckedAdapter(f"sha256:{hexed}", 8, 10 * (number + 1), ())


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    registrations=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), min_size=1, max_size=12),
    count=st.integers(0, 6),
    size=st.integers(0, 250),
)
async def test_concurrent_registrations_do_not_exceed_limits(
    registrations: list[tuple[int, int]], count: int, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("race")
    for number in range(8):
        (folder / str(number)).mkdir()
    rig = Rig(folder / "data", Base("small", folder, max_rank=16))
    rig.service.store.start()
    rig.service.checker = InstantChecker()  # type: ignore[assignment]
    limiter = StorageLimiter()
    limiter.replace([limit(Kind.ADAPTERS, count), limit(Kind.ADAPTER_BYTES, size)])

    async def register(name: str, number: int) -> None:
        key = AdapterKey("small", name, TEAM)
        await rig.service.register(
            name, rig.base, PathSource(path=str(folder / str(number))), team=TEAM,
            accept=lambda it: limiter.admit(key, rig.service.list, it.digest, it.bytes) and None,
        )  # fmt: skip

    answers = await asyncio.gather(
        *(register(f"n{name}", number) for name, number in registrations), return_exceptions=True
    )
    stored = rig.service.list()
    sizes = {version.digest: version.bytes for one in stored for version in one.versions}
    assert len(stored) <= count
    assert sum(sizes.values()) <= size
    assert all(answer is None or isinstance(answer, StorageExceeded) for answer in answers), answers
    assert rig.on_disk() == {one.removeprefix("sha256:") for one in sizes}, "refused adapters are not stored"
    rig.state.close()


async def test_concurrent_uploads_are_admitted_up_to_the_limit(tmp_path: Path) -> None:
    """With the real checker."""
    rig = Rig(tmp_path / "data", Base("small", write_base(tmp_path / "base"), max_rank=16))
    await rig.service.start()
    limiter = StorageLimiter()
    limiter.replace([limit(Kind.ADAPTERS, 2)])

    async def register(seed: int) -> None:
        key = AdapterKey("small", f"n{seed}", TEAM)
        source = PathSource(path=str(write_adapter(tmp_path / str(seed), seed=seed)))
        await rig.service.register(
            key.name, rig.base, source, team=TEAM,
            accept=lambda it: limiter.admit(key, rig.service.list, it.digest, it.bytes) and None,
        )  # fmt: skip

    answers = await asyncio.gather(*map(register, range(5)), return_exceptions=True)
    assert len([one for one in answers if isinstance(one, StorageExceeded)]) == 3
    assert len(rig.service.list()) == len(rig.on_disk()) == 2
    await rig.service.close()
    rig.state.close()


def test_merged_models_count_and_bytes_are_readable(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        stock = Stock(state, limit(Kind.ADAPTER_BYTES, 3 * 2**20), merged={"base-a-1": 2 * 2**20})
        with pytest.raises(StorageExceeded) as refused:
            stock.add("a", 1, 2**20 + 2**19)
        assert "is 3145728 (3.0 MiB), of which 2097152 (2.0 MiB) are used" in refused.value.message
        assert "adds 1572864 (1.5 MiB)" in refused.value.message
        stock.add("a", 1, 2**20)
