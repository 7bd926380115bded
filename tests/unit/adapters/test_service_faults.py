"""Registration during failures: lost files, killed processes, cancelled callers, full disks."""

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.service import AdapterService
from adapters.store import AdapterNotes
from adapters.types import Base, CheckedAdapter, UploadedArchive
from registry.bounds import Bounds
from registry.errors import EngineFailed, RoundhouseError, Unavailable
from registry.recipes.fields import PathSource
from registry.records import Adapter, AdapterKey, RegisteredVersion
from registry.state.database import State
from tests.eventually import PATIENCE
from tests.unit.adapters.makers import write_adapter
from tests.unit.adapters.rig import Rig


async def test_lost_files_are_reported_and_a_new_registration_heals_them(rig: Rig, folder: Path) -> None:
    registered = await rig.add("tune", folder, 0)
    digest = registered.version.digest
    shutil.rmtree(rig.service.store.path(digest))
    with pytest.raises(EngineFailed, match="Register the adapter again"):
        await rig.service.ready(digest)
    assert not (await rig.add("tune", folder, 0)).created
    rig.service.store.verify(digest)


async def test_without_a_base_no_process_runs_until_the_first_adapter(tmp_path: Path, base: Base, folder: Path) -> None:
    rig = Rig(tmp_path / "data", base)
    await rig.service.start(warm=False)
    assert rig.service.checker.pids == []
    assert (await rig.add("tune", folder, 0)).created
    assert len(rig.service.checker.pids) == 1
    await rig.service.close()
    rig.state.close()


async def test_a_killed_checker_fails_only_one_registration(rig: Rig, folder: Path) -> None:
    await rig.add("before", folder, 0)
    await rig.warm_up()
    pids = rig.service.checker.pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    running = [asyncio.create_task(rig.add(f"tune{n}", folder, n)) for n in range(4)]
    while sum(path.startswith("tmp-") for path in rig.on_disk()) < 4 or not rig.service.checker._free.empty():
        await asyncio.sleep(0.01)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    done = await asyncio.gather(*running, return_exceptions=True)
    lost = [result for result in done if isinstance(result, RoundhouseError)]
    assert len(lost) == 2
    assert all("Nothing was registered" in error.message for error in lost)
    assert len(rig.service.list()) == 3
    assert not any(path.startswith("tmp-") for path in rig.on_disk())


async def test_a_cancelled_registration_leaves_nothing(rig: Rig, folder: Path) -> None:
    await rig.warm_up()
    for pid in rig.service.checker.pids:
        os.kill(pid, signal.SIGSTOP)
    running = asyncio.create_task(rig.add("tune", folder, 0))
    while not rig.on_disk():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not rig.on_disk()
    for pid in rig.service.checker.pids:
        os.kill(pid, signal.SIGCONT)
    assert (await rig.add("tune", folder, 0)).created


async def test_a_copy_that_is_cancelled_while_it_is_stored_is_whole(
    rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, service = (await rig.add("tune", folder, 0)).version, rig.service
    parts = list((await service.open_copy(version.digest)).parts())
    service.store.remove(version.digest)
    service.stored_digests = frozenset()
    commit, begun, may_go = service.store.commit, threading.Event(), threading.Event()

    def wait(out: Path, digest: str) -> Path:
        begun.set()
        may_go.wait()
        return commit(out, digest)

    async def stream() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    monkeypatch.setattr(service.store, "commit", wait)
    taking = asyncio.create_task(service.take_copy(version, stream()))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    taking.cancel()
    await asyncio.wait({taking}, timeout=0.1)
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    service.store.verify(version.digest)
    assert service.stored_digests == {version.digest}
    assert not any(path.startswith("tmp-") for path in rig.on_disk())


async def test_notes_are_stored_before_the_name_even_if_the_caller_leaves(
    rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, register = rig.service._check, rig.state.adapters.register
    begun, may_go = threading.Event(), threading.Event()

    async def noted(*given: object, **options: object) -> CheckedAdapter:
        return replace(await check(*given, **options), notes=("a rank pattern",))  # type: ignore[arg-type]

    def wait(*given: object) -> RegisteredVersion:
        begun.set()
        may_go.wait()
        return register(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.service, "_check", noted)
    monkeypatch.setattr(rig.state.adapters, "register", wait)
    adding = asyncio.create_task(rig.add("tune", folder, 0))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    adding.cancel()
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert AdapterNotes(rig.data / "notes").of(rig.version("tune").digest) == ("a rank pattern",)


async def test_a_full_disk_is_reported_and_nothing_is_left(tmp_path: Path, base: Base, folder: Path) -> None:
    rig = Rig(tmp_path / "data", base, Bounds(unpacked_bytes=50_000))  # writes fail as on a disk with 50 kB free
    await rig.service.start()
    with pytest.raises(Unavailable, match="full") as refused:
        await rig.add("tune", folder, 0)
    assert refused.value.code == "disk_full"
    assert not rig.on_disk()
    assert rig.service.list() == []
    await rig.service.close()
    rig.state.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
async def test_a_disk_that_is_really_full(tmp_path: Path, base: Base, folder: Path) -> None:
    write_adapter(folder / "one")
    write_adapter(folder / "two", seed=2)
    (tmp_path / "small").mkdir()
    # one adapter of 72 kB fits, but not two
    mounted = await asyncio.create_subprocess_exec(
        "mount", "-t", "tmpfs", "-o", "size=120k", "none", tmp_path / "small"
    )
    if await mounted.wait():
        pytest.skip("no right to mount")
    state = State(tmp_path)
    service = AdapterService(tmp_path / "small", state, leased=lambda digest: False)
    try:
        await service.start()
        one = await service.register("one", base, PathSource(path=str(folder / "one")))
        for _ in range(2):
            with pytest.raises(Unavailable, match="full"):
                await service.register("two", base, PathSource(path=str(folder / "two")))
        assert service.store.digests() == [one.version.digest]
        assert [adapter.key.name for adapter in service.list()] == ["one"]
        service.store.verify(one.version.digest)
        await service.remove(AdapterKey("small", "one"))
        await service.collect()
        assert (await service.register("two", base, PathSource(path=str(folder / "two")))).created
    finally:
        await service.close()
        state.close()
        await (await asyncio.create_subprocess_exec("umount", tmp_path / "small")).wait()


async def test_an_adapter_is_registered_although_its_old_versions_cannot_be_removed(
    tmp_path: Path, base: Base, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path / "data", base, Bounds(adapter_versions=1))

    def locked(*_args: object) -> Adapter:
        raise Unavailable("The database is locked.")

    try:
        await rig.service.start()
        await rig.add("tune", folder, 1)
        await rig.add("tune", folder, 2)
        monkeypatch.setattr(rig.state.adapters, "prune", locked)
        assert (await rig.add("tune", folder, 3)).version.tag == "v3"
        monkeypatch.undo()
        kept = (await rig.add("tune", folder, 4)).adapter.versions
        assert [version.tag for version in kept] == ["v3", "v4"], "the current one, and that of a rollback"
    finally:
        await rig.service.close()
        rig.state.close()


async def test_after_a_kill_leftovers_are_removed_and_registered_adapters_are_there(
    tmp_path: Path, base: Base, folder: Path
) -> None:
    rig = Rig(tmp_path / "data", base)
    await rig.service.start()
    promised = await rig.add("tune", folder, 0)
    stored = await rig.add("gone", folder, 1)
    rig.state.adapters.delete(AdapterKey("small", "gone"))
    (rig.data / "store" / "tmp-half").mkdir()
    (rig.data / "incoming" / "half").mkdir(parents=True)
    await rig.service.close()
    rig.state.close()
    again = Rig(tmp_path / "data", base)
    await again.service.start()
    assert again.on_disk() == {promised.version.digest.removeprefix("sha256:")}
    assert stored.version.digest not in again.on_disk()
    assert not (again.data / "incoming").exists()
    again.service.store.verify(again.version("tune").digest)
    await again.service.close()
    again.state.close()


async def test_a_start_with_another_state_deletes_no_adapter_but_what_a_kill_left(
    tmp_path: Path, base: Base, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a start without its --database, or with a state.db that was lost."""
    rig = Rig(tmp_path / "data", base)
    await rig.service.start()
    with monkeypatch.context() as killed:
        killed.setattr(rig.state.adapters, "register", _unavailable)
        with pytest.raises(Unavailable):
            await rig.add("killed", folder, 1)
    assert len(rig.on_disk()) == 1
    await rig.service.collect()
    assert not rig.on_disk()
    await rig.add("tune", folder, 0)
    await rig.service.close()
    rig.state.close()
    (rig.data / "state.db").rename(tmp_path / "state.db")
    other = Rig(tmp_path / "data", base)
    await other.service.start(warm=False)
    assert "adapters that the state does not know" in caplog.text
    await other.service.close()
    other.state.close()
    (tmp_path / "state.db").rename(rig.data / "state.db")
    again = Rig(tmp_path / "data", base)
    await again.service.start(warm=False)
    for adapter in again.service.list():
        await again.service.ready(adapter.current.digest)
    await again.service.close()
    again.state.close()


def _unavailable(*_: object) -> RegisteredVersion:
    raise Unavailable("The database is locked.")


async def test_files_that_cannot_be_deleted_stop_neither_a_deletion_nor_a_start(
    rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = (await rig.add("stays", folder, 0)).version.digest
    goes = (await rig.add("goes", folder, 1)).version.digest
    remove = rig.service.store.remove

    def refuse(digest: str) -> None:
        if digest == stays:
            raise PermissionError(13, "Permission denied")
        remove(digest)

    monkeypatch.setattr(rig.service.store, "remove", refuse)
    for name in ("stays", "goes"):
        await rig.service.remove(AdapterKey("small", name))
    assert await rig.service.collect() == (goes,)
    await rig.service.start()
    monkeypatch.undo()
    assert await rig.service.collect() == (stays,), "the deletion is repeated"
    assert not rig.on_disk()


async def test_a_data_directory_that_was_moved_is_reported_and_nothing_is_made_in_its_place(
    rig: Rig, folder: Path, tmp_path: Path
) -> None:
    """Files written there would be lost once the old directory is back."""
    first = await rig.add("first", folder, 0)
    rig.data.rename(tmp_path / "moved")
    archive = tmp_path / "upload"
    archive.write_bytes(b"")
    for source in (PathSource(path=str(folder / "first-0")), UploadedArchive(archive)):
        with pytest.raises(Unavailable, match="No such file or directory") as error:
            await rig.service.register("tune", rig.base, source)
        assert error.value.code == "disk_full"
    assert not rig.data.exists()
    (tmp_path / "moved").rename(rig.data)
    await rig.add("tune", folder, 1)
    await rig.service.ready(first.version.digest)
