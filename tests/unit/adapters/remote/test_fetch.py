"""Sources of adapters: downloads that take too long, packages, and errors of the disk."""

import errno
import threading
from pathlib import Path

import pytest

from adapters import fetch
from adapters.fetch import Fetcher, disk_errors
from registry.bounds import Bounds
from registry.errors import Unavailable, Unfit
from registry.recipes.fields import HubSource, PackageSource
from registry.storage.reserve import DiskReserve


def fetcher(folder: Path, **bounds: float) -> Fetcher:
    return Fetcher(folder / "incoming", Bounds(**bounds), DiskReserve(folder, 0))  # type: ignore[arg-type]


async def test_a_download_that_takes_too_long_fails_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def endless(source: HubSource, folder: Path, *rest: object) -> str:
        (folder / "part").touch()
        ended.wait(200)
        return ""

    monkeypatch.setattr(fetch, "download_repository", endless)
    source = HubSource(hub="team/tune", revision="main")
    try:
        with pytest.raises(Unavailable, match=r"^'team/tune' was not downloaded within 0 s") as late:
            async with fetcher(tmp_path, adapter_download_seconds=0.01).fetched(source, "team"):
                pytest.fail("it was not fetched")
    finally:
        ended.set()
    assert late.value.code == "hub_unavailable"
    assert list((tmp_path / "incoming").iterdir()) == []


async def test_an_adapter_may_lie_in_a_package(tmp_path: Path) -> None:
    source = PackageSource(package="adapters", inside="content")
    async with fetcher(tmp_path).fetched(source, "team") as fetched:
        assert fetched.path == Path(fetch.__file__).parent / "content"
        assert (fetched.unpack_to, fetched.words) == (None, "adapters:content")
    with pytest.raises(Unfit, match="no installed package 'no_such_package_here'") as missing:
        async with fetcher(tmp_path).fetched(PackageSource(package="no_such_package_here"), "team"):
            pytest.fail("it was fetched")
    assert missing.value.code == "source_not_found"


async def test_a_package_with_an_adapter_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may name packages, too: in the adapters of a recipe that they change."""
    (tmp_path / "lively" / "inner").mkdir(parents=True)
    (tmp_path / "lively" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with fetcher(tmp_path).fetched(PackageSource(package="lively", inside="inner"), "team") as fetched:
        assert fetched.path == tmp_path / "lively" / "inner"
    with pytest.raises(Unfit):
        async with fetcher(tmp_path).fetched(PackageSource(package="antigravity"), "team"):
            pytest.fail("a module holds no folder")


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "is full, or cannot be written"), (errno.EACCES, r"cannot be used: no \(/data/store\)")],
)
def test_errors_of_the_disk_are_translated_and_others_passed_on(number: int, words: str) -> None:
    with pytest.raises(Unavailable, match=f"{words}. Nothing was registered") as full, disk_errors():
        raise OSError(number, "no", "/data/store")
    assert full.value.code == "disk_full"
    with pytest.raises(OSError, match="other"), disk_errors():
        raise OSError(errno.EBADF, "other")
