"""Registration from end to end, with real checking processes, store and state."""

import asyncio
import sqlite3
import tarfile
import threading
import time
from pathlib import Path

import pytest

from adapters.service import AdapterService
from adapters.types import Base, UploadedArchive
from registry.bounds import Bounds
from registry.errors import BadRequest, Conflict, NotFound, Unfit
from registry.recipes.fields import HubSource, PathSource
from registry.records import AdapterKey, Probe
from registry.state.adapters import AdapterTable
from registry.state.database import State
from tests.eventually import PATIENCE
from tests.fakes.databases import HangingWrites
from tests.unit.adapters.fake_hub import serve
from tests.unit.adapters.makers import write_adapter
from tests.unit.adapters.rig import Rig


async def test_register_resolve_and_find_the_files(rig: Rig, folder: Path) -> None:
    registered = await rig.add("tune", folder, 0, probe=Probe("hi", "HI"), alias="prod")
    assert registered.created
    for selector in ("tune", "tune@v1", "tune@prod", f"tune@{registered.version.digest}"):
        assert rig.version(selector) == registered.version
    assert (registered.version.tag, registered.version.probe) == ("v1", Probe("hi", "HI"))
    stored = rig.service.stored(registered.version)
    assert (stored.path / "adapter_model.safetensors").stat().st_size == stored.bytes
    assert stored.rank == 8
    await rig.service.ready(stored.digest)
    rig.service.store.verify(stored.digest)


async def test_the_checking_processes_run_after_the_start(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        service = AdapterService(tmp_path, state, leased=lambda _: False, workers=1)
        await service.start()
        assert len(service.checker.pids) == 1
        await service.close()


async def test_the_same_content_again_makes_no_version(rig: Rig, folder: Path) -> None:
    first = await rig.add("tune", folder, 0)
    again = await rig.add("tune", folder, 0)
    assert (again.created, again.version) == (False, first.version)
    assert len(rig.on_disk()) == 1


async def test_versions_aliases_and_rollback(rig: Rig, folder: Path) -> None:
    first = await rig.add("tune", folder, 0, alias="prod")
    second = await rig.add("tune", folder, 1)
    assert rig.version("tune").digest == second.version.digest
    assert rig.version("tune@prod").digest == first.version.digest
    await rig.service.change(AdapterKey("small", "tune"), lambda table, key: table.set_alias(key, "prod", "v2"))
    assert rig.version("tune@prod").tag == "v2"
    await rig.service.change(AdapterKey("small", "tune"), AdapterTable.rollback)
    assert rig.version("tune").tag == "v1"
    await rig.service.change(AdapterKey("small", "tune"), lambda table, key: table.rollback(key, "v2"))
    assert rig.version("tune").tag == "v2"
    await rig.service.change(AdapterKey("small", "tune"), lambda table, key: table.remove_alias(key, "prod"))
    with pytest.raises(NotFound, match="has no version 'prod'"):
        rig.version("tune@prod")
    assert (await rig.service.pin(AdapterKey("small", "tune"), True)).pinned
    assert [adapter.key.name for adapter in rig.service.list("small")] == ["tune"]
    assert rig.service.list("other") == []
    assert len(rig.service.show(AdapterKey("small", "tune")).versions) == 2


async def test_a_collection_takes_no_files_of_a_registration_under_way(
    rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, go, commit = threading.Event(), threading.Event(), rig.service.store.commit

    def wait_before_it_is_registered(out: Path, digest: str) -> None:
        commit(out, digest)
        stored.set()
        go.wait(PATIENCE)

    monkeypatch.setattr(rig.service.store, "commit", wait_before_it_is_registered)
    adding = asyncio.create_task(rig.add("tune", folder, 0))
    await asyncio.to_thread(stored.wait, PATIENCE)
    collecting = asyncio.create_task(rig.service.collect())
    await asyncio.wait({collecting}, timeout=0.2)
    go.set()
    registered = await adding
    assert await collecting == ()
    await rig.service.ready(registered.version.digest)


async def test_old_versions_go_unless_requests_use_them(tmp_path: Path, base: Base, folder: Path) -> None:
    rig = Rig(tmp_path / "data", base, Bounds(adapter_versions=2))
    try:
        await rig.service.start()
        aliased = await rig.add("tune", folder, 1, alias="prod")
        used, unused = await rig.add("tune", folder, 2), await rig.add("tune", folder, 3)
        rig.leases.add(used.version.digest)
        added = [await rig.add("tune", folder, number) for number in (4, 5)]
        assert [one.unreferenced for one in added] == [(), (unused.version.digest,)]
        assert [version.tag for version in added[-1].adapter.versions] == ["v1", "v2", "v4", "v5"]
        await rig.service.collect()
        assert rig.service.store.path(aliased.version.digest).is_dir()
        assert rig.service.store.path(used.version.digest).is_dir()
        assert not rig.service.store.path(unused.version.digest).exists()
    finally:
        await rig.service.close()
        rig.state.close()


async def test_nothing_unknown_resolves(rig: Rig) -> None:
    with pytest.raises(NotFound, match="no adapter 'none'"):
        rig.version("none")


async def test_a_dry_run_stores_nothing(rig: Rig, folder: Path) -> None:
    checked = await rig.service.validate(rig.base, PathSource(path=str(write_adapter(folder))))
    assert checked.rank == 8
    assert not rig.on_disk()
    with pytest.raises(Unfit):
        await rig.service.validate(
            rig.base, PathSource(path=str(write_adapter(folder / "x", settings={"use_dora": True})))
        )


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65, "ü"])
async def test_bad_names_are_refused_before_any_work(name: str, rig: Rig, folder: Path) -> None:
    with pytest.raises(BadRequest, match="not a valid adapter name"):
        await rig.service.register(name, rig.base, PathSource(path=str(folder)))


async def test_bad_sources_leave_nothing(rig: Rig, folder: Path) -> None:
    write_adapter(folder, settings={"use_dora": True})
    for path, error in ((str(folder), Unfit), (str(folder / "none"), NotFound), ("relative", BadRequest)):
        with pytest.raises(error):
            await rig.service.register("tune", rig.base, PathSource(path=path))
    assert not rig.on_disk()
    assert rig.service.list() == []


async def test_an_uploaded_archive_is_registered(rig: Rig, folder: Path, tmp_path: Path) -> None:
    write_adapter(folder)
    archive = tmp_path / "upload"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "mine")
    registered = await rig.service.register("tune", rig.base, UploadedArchive(archive))
    assert registered.version.source == "upload"
    assert archive.exists(), "the caller removes it"
    assert not list(rig.service.incoming.iterdir())
    plain = await rig.add("plain", folder.parent / "other", 0)
    assert plain.version.digest == registered.version.digest


async def test_a_hub_adapter_is_registered_with_its_commit(
    rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        commit = hub.push("team/tune", write_adapter(folder))
        registered = await rig.service.register("tune", rig.base, HubSource(hub="team/tune", revision="main"))
    assert registered.version.source == f"team/tune@{commit}"
    assert not list((rig.data / "incoming").iterdir())


async def test_two_clients_register_one_name_at_once(rig: Rig, folder: Path) -> None:
    done = await asyncio.gather(*(rig.add("tune", folder, seed) for seed in range(6)))
    assert sorted(registered.version.tag for registered in done) == [f"v{n}" for n in range(1, 7)]
    current = rig.version("tune")
    last = next(r for r in done if r.version.tag == "v6")
    assert current.digest == last.version.digest
    for registered in done:
        rig.service.store.verify(registered.version.digest)


async def test_two_names_with_one_content_share_the_files(rig: Rig, folder: Path) -> None:
    done = await asyncio.gather(*(rig.add(f"tune{n}", folder, 0) for n in range(5)))
    assert len({registered.version.digest for registered in done}) == 1
    assert len(rig.on_disk()) == 1
    assert await rig.service.remove(AdapterKey("small", "tune0")) == ()
    await rig.service.collect()
    rig.service.store.verify(done[0].version.digest)


async def test_a_deletion_during_a_lease_is_refused_unless_forced(rig: Rig, folder: Path) -> None:
    first = await rig.add("tune", folder, 0)
    second = await rig.add("tune", folder, 1)
    rig.leases.add(first.version.digest)
    for ref in (None, "v1"):
        with pytest.raises(Conflict, match="using v1"):
            await rig.service.remove(AdapterKey("small", "tune"), ref)
    rig.leases.clear()
    await rig.service.change(AdapterKey("small", "tune"), lambda table, key: table.set_alias(key, "prod", "v1"))
    with pytest.raises(Conflict, match="prod"):
        await rig.service.remove(AdapterKey("small", "tune"))
    assert await rig.service.remove(AdapterKey("small", "tune"), "v1", force=True) == (first.version.digest,)
    assert await rig.service.remove(AdapterKey("small", "tune")) == (second.version.digest,)
    with pytest.raises(NotFound):
        rig.version("tune")


async def test_a_digest_that_an_earlier_version_registered_again_is_freed(rig: Rig, folder: Path) -> None:
    """Servers of such a version leave the mark of its removal."""
    digest = (await rig.add("tune", folder, 0)).version.digest
    with sqlite3.connect(rig.data / "state.db") as state:
        assert state.execute("UPDATE digests SET removed = 1.0").rowcount == 1
    assert await rig.service.remove(AdapterKey("small", "tune")) == (digest,)


async def test_unused_files_are_removed_unless_they_are_leased(rig: Rig, folder: Path) -> None:
    first = await rig.add("tune", folder, 0)
    kept = await rig.add("other", folder, 1)
    rig.leases.add(first.version.digest)
    await rig.service.remove(AdapterKey("small", "tune"), force=True)
    assert await rig.service.collect() == ()
    rig.leases.clear()
    assert await rig.service.collect() == (first.version.digest,)
    assert rig.on_disk() == {kept.version.digest.removeprefix("sha256:")}


async def test_concurrent_registrations_share_equal_content(rig: Rig, folder: Path) -> None:
    """Checks only counts; benchmarks/adapters measures the time."""
    for seed in range(10):
        write_adapter(folder / str(seed), seed=seed)
    began = time.perf_counter()
    names = [(f"tune{number}", number % 10) for number in range(60)]
    await asyncio.gather(
        *(rig.service.register(name, rig.base, PathSource(path=str(folder / str(seed)))) for name, seed in names)
    )
    print(f"{60 / (time.perf_counter() - began):.0f} registrations a second")
    assert len(rig.service.list()) == 60
    assert len(rig.on_disk()) == 10


async def test_a_hanging_database_delays_nothing_else(rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.add("first", folder, 0)
    first, changes = AdapterKey("small", "first"), rig.service
    for change in (
        lambda: rig.add("tune", folder, 1),
        lambda: changes.pin(first, True),
        lambda: changes.share(first, True),
        lambda: changes.change(first, lambda table, key: table.set_alias(key, "prod", None)),
        lambda: changes.remove(first, force=True),
    ):
        with monkeypatch.context() as patch:
            writes = HangingWrites()
            writes.hang(patch)
            changing = asyncio.ensure_future(change())
            assert await asyncio.to_thread(writes.requested.wait, PATIENCE)
            assert changes.show(first).key == first
            assert not changing.done()
            writes.answers.set()
            await changing
