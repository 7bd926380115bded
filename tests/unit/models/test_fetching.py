"""Downloads in their own processes, from a hub on a local port."""

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub import constants

from models.sources import fetching, repository
from models.sources.fetch_process import fetch_large_files
from models.sources.fetching import Downloads
from models.sources.resolve import resolve
from registry.errors import NotFound, Unavailable
from registry.recipes.fields import HubSource
from tests.children import children, running
from tests.eventually import PATIENCE
from tests.unit.adapters.fake_hub import FakeHub, serve

WEIGHTS = "model.safetensors"


def ignore_progress(_come: int, _whole: int | None) -> None: ...


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "300")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(repository, "cache_folder", lambda: tmp_path / "hf" / "hub")
        yield found


@pytest.fixture
def source(hub: FakeHub, tmp_path: Path) -> HubSource:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(bytes(range(256)) * 98304)
    return HubSource(hub="a/model", revision=hub.push("a/model", folder))


def gets(hub: FakeHub) -> int:
    return len([one for one in hub.requested if one.startswith("GET") and one.endswith(WEIGHTS)])


async def until_half(hub: FakeHub, root: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not any(file.stat().st_size for file in root.rglob("*.part")):
            await asyncio.sleep(0.02)


async def test_two_who_want_the_same_share_one_process(hub: FakeHub, source: HubSource, tmp_path: Path) -> None:
    others = children()
    hub.gate = threading.Event()
    downloads = Downloads()
    both = [asyncio.create_task(downloads.fetch(source, ignore_progress)) for _ in range(2)]
    await until_half(hub, tmp_path)
    assert len(running("fetch_process", others)) == 1
    hub.gate.set()
    one, other = await asyncio.gather(*both)
    assert one == other
    assert (one / WEIGHTS).stat().st_size == 24 * 2**20
    assert gets(hub) == 1


async def test_one_who_leaves_does_not_end_it_for_the_other(hub: FakeHub, source: HubSource, tmp_path: Path) -> None:
    hub.gate = threading.Event()
    downloads = Downloads()
    leaves, stays = (asyncio.create_task(downloads.fetch(source, ignore_progress)) for _ in range(2))
    await until_half(hub, tmp_path)
    leaves.cancel()
    hub.gate.set()
    assert (await stays / WEIGHTS).is_file()
    assert leaves.cancelled()


async def test_the_last_one_who_leaves_ends_it_and_the_next_try_goes_on(
    hub: FakeHub, source: HubSource, tmp_path: Path
) -> None:
    others = children()
    hub.gate = threading.Event()
    downloads = Downloads()
    task = asyncio.create_task(downloads.fetch(source, ignore_progress))
    await until_half(hub, tmp_path)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running("fetch_process", others)
    hub.gate.set()
    folder = await downloads.fetch(source, ignore_progress)
    assert (folder / WEIGHTS).read_bytes() == (tmp_path / "model" / WEIGHTS).read_bytes()
    assert any(one.startswith("from ") for one in hub.requested)


async def test_one_that_takes_a_while_to_end_does_not_take_the_next_one_away(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ends = 0, asyncio.Event()

    async def run(*_: object) -> Path:
        nonlocal begun
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            await ends.wait()  # as for the process
        raise AssertionError

    monkeypatch.setattr(fetching._Download, "_run", run)
    downloads, expected = Downloads(), HubSource(hub="a/model", revision="main")

    async def begin(count: int) -> asyncio.Task[Path]:
        task = asyncio.create_task(downloads.fetch(expected, ignore_progress))
        while begun < count:
            await asyncio.sleep(0)
        return task

    first = await begin(1)
    first.cancel()
    second = await begin(2)
    ends.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    third = await begin(2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == 2, "the third waits for the second's"
    for task in (second, third):
        task.cancel()
    await asyncio.wait({second, third})


async def test_a_killed_process_is_reported_and_the_next_one_goes_on(
    hub: FakeHub, source: HubSource, tmp_path: Path
) -> None:
    others = children()
    hub.gate = threading.Event()
    downloads = Downloads()
    task = asyncio.create_task(downloads.fetch(source, ignore_progress))
    await until_half(hub, tmp_path)
    for process in running("fetch_process", others):
        process.kill()
    with pytest.raises(Unavailable) as refused:
        await task
    assert refused.value.code == "download_ended"
    hub.gate.set()
    assert (await downloads.fetch(source, ignore_progress) / WEIGHTS).is_file()


async def test_other_bytes_than_the_hub_tells_of_are_thrown_away(hub: FakeHub, source: HubSource) -> None:
    hub.spoil = True
    with pytest.raises(Unavailable) as refused:
        await Downloads().fetch(source, ignore_progress)
    assert refused.value.code == "bad_download"
    hub.spoil = False
    assert (await Downloads().fetch(source, ignore_progress) / WEIGHTS).is_file()


UP = "../" * 12


@pytest.mark.parametrize("name", ["{up}{place}/adapter.json", "/{place}/adapter.json", "a/{up}{place}/adapter.json"])
async def test_a_hub_that_lists_files_outside_of_the_repository_removes_none(
    hub: FakeHub, source: HubSource, tmp_path: Path, name: str
) -> None:
    victim = tmp_path / "adapter.json"
    victim.write_text("precious")
    hub.listed = [{"rfilename": name.format(up=UP, place=str(tmp_path)[1:]), "size": 1, "blobId": "b" * 40}]
    with pytest.raises(Unavailable, match="does not answer like a hub"):
        await Downloads().fetch(source, ignore_progress)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("digest", ["../../".ljust(64, "x"), "B" * 64, ["b" * 64], "b" * 63])
async def test_a_digest_that_is_none_names_no_file(
    hub: FakeHub, source: HubSource, tmp_path: Path, digest: object
) -> None:
    """Else the bytes come to wherever it leads, and stay there when the download breaks off."""
    hub.listed = [{"rfilename": WEIGHTS, "size": 9, "lfs": {"sha256": digest, "size": 9, "pointerSize": 134}}]
    with pytest.raises(Unavailable, match="does not answer like a hub"):
        await Downloads().fetch(source, ignore_progress)
    assert not [*tmp_path.rglob("*.part")]


async def test_more_bytes_than_the_hub_tells_of_do_not_fill_the_disk(
    hub: FakeHub, source: HubSource, tmp_path: Path
) -> None:
    hub.surplus = 2**20
    with pytest.raises(Unavailable, match="more bytes than the hub says") as refused:
        await Downloads().fetch(source, ignore_progress)
    assert refused.value.code == "bad_download"
    assert not [*tmp_path.rglob("*.part")], "the next try begins anew"
    hub.surplus = 0
    assert (await Downloads().fetch(source, ignore_progress) / WEIGHTS).is_file()


async def test_more_bytes_of_a_small_file_do_not_fill_the_disk(hub: FakeHub, source: HubSource, tmp_path: Path) -> None:
    hub.unannounced["config.json"] = 64 * 2**20
    with pytest.raises(Unavailable, match="more bytes than the hub says") as refused:
        await Downloads().fetch(source, ignore_progress)
    assert refused.value.code == "bad_download"
    assert max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 32 * 2**20


async def test_a_branch_that_moves_meanwhile_is_fetched_as_it_was(
    hub: FakeHub, source: HubSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of it came twice, and what had come newly was thrown away as other than the hub had said."""
    hub.gate, branch = threading.Event(), HubSource(hub=source.hub, revision="main")
    task = asyncio.create_task(Downloads().fetch(branch, ignore_progress))
    await until_half(hub, tmp_path)
    (tmp_path / "model" / "config.json").write_text('{"newer": 1}')
    assert hub.push("a/model", tmp_path / "model") != source.revision
    hub.gate.set()
    folder = await task
    assert folder.name == source.revision
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    assert resolve(branch, tmp_path, download=False) == folder, "also by its name, without the hub"


async def test_a_fault_of_one_file_is_reported_while_others_still_download(
    hub: FakeHub, source: HubSource, tmp_path: Path
) -> None:
    """They may take hours, for nothing."""
    commit = hub.push("a/model", tmp_path / "model", more={"beside.safetensors": b"x" * 2**20})
    hub.gate, hub.spoil = threading.Event(), True
    expected = HubSource(hub=source.hub, revision=commit)
    try:
        with pytest.raises(Unavailable, match=r"beside\.safetensors"):
            await asyncio.wait_for(Downloads().fetch(expected, ignore_progress), PATIENCE)
    finally:
        hub.gate.set()


async def test_errors_of_the_hub_come_through(hub: FakeHub, source: HubSource) -> None:
    with pytest.raises(NotFound, match="no revision"):
        await Downloads().fetch(HubSource(hub=source.hub, revision="nowhere"), ignore_progress)
    hub.fail_with = 503
    with pytest.raises(Unavailable, match=r"did not deliver.*status 503") as refused:
        await Downloads().fetch(source, ignore_progress)
    assert refused.value.code == "hub_unavailable"


async def test_the_error_where_nothing_can_be_stored_says_what_to_do(source: HubSource, tmp_path: Path) -> None:
    (tmp_path / "hf").write_text("no folder")
    with pytest.raises(Unavailable, match=r"could not be stored: .* point HF_HOME to another disk") as refused:
        await Downloads().fetch(source, ignore_progress)
    assert refused.value.code == "source_not_stored"


def test_what_has_its_digest_for_a_name_is_on_the_disk(
    hub: FakeHub, source: HubSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power leaves other content under it, which nobody looks at again."""
    done: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append(Path(os.readlink(f"/proc/self/fd/{file}")).suffix))
    monkeypatch.setattr(os, "replace", lambda part, blob: (done.append("named"), replace(part, blob)))
    fetch_large_files(source, repository.files_of(source), ignore_progress)
    assert done == [".part", "named"]


class Disk(NamedTuple):
    total: int
    used: int
    free: int


def test_the_disk_is_looked_at_first(hub: FakeHub, source: HubSource, monkeypatch: pytest.MonkeyPatch) -> None:
    files = repository.files_of(source)
    assert repository.missing_bytes(source, files) == 24 * 2**20 + 2
    repository.check_disk(source, files)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Disk(2**30, 2**30 - 2**20, 2**20))
    with pytest.raises(Unavailable, match=r"24\.0 MiB of disk.*1\.0 MiB free") as refused:
        repository.check_disk(source, files)
    assert refused.value.code == "disk_full"
