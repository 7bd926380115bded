"""The reserve of the data directory's disk, also under a flood of uploads to a small file system."""

import asyncio
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.types import Base, UploadedArchive
from registry.errors import Unavailable
from registry.records import AdapterKey
from registry.storage.reserve import LEAST, MOST, DiskReserve
from tests.unit.adapters.makers import write_adapter, write_base
from tests.unit.adapters.rig import Rig
from tests.unit.disks import mount_small

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with mount_small(tmp_path / "small", "8m") as folder:
        yield folder


class Disk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
        self.total, self.free = total, free
        monkeypatch.setattr(os, "statvfs", self.look)

    def look(self, _: Path) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, self.total // 4096, 0, self.free // 4096, 0, 0, 0, 0, 255))


@pytest.mark.parametrize(
    ("total", "size", "reserved"),
    [
        (100 * MIB, None, 25 * MIB),
        (1000 * MIB, None, LEAST),
        (10**4 * MIB, None, 100 * MIB),
        (10**6 * MIB, None, MOST),
        (MIB, 7, 7),
    ],
)
def test_the_reserve_depends_on_the_disks_size(
    total: int, size: int | None, reserved: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Disk(monkeypatch, total, total)
    assert DiskReserve(tmp_path, size).measure() == (total, reserved)


def test_only_folders_on_the_same_disk_are_covered(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path)
    assert reserve.covers(tmp_path / "not" / "yet")
    assert not reserve.covers(Path("/proc"))
    assert not DiskReserve(tmp_path / "gone").covers(tmp_path)


def test_held_room_is_not_available_to_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disk = Disk(monkeypatch, 100 * MIB, 50 * MIB)
    reserve = DiskReserve(tmp_path, 10 * MIB)
    with reserve.hold_pair(1000 * MIB, 1) as first, reserve.hold_pair(3 * MIB, 1) as second:
        assert (first, second) == (10 * MIB, 3 * MIB)
        with pytest.raises(Unavailable, match=r"full: 50\.0 MiB are free, and 10\.0 MiB of them are") as refused:
            reserve.take(14 * MIB + 1)
        assert (refused.value.code, refused.value.retry_after) == ("storage_full", 60.0)
        with pytest.raises(Unavailable), reserve.hold_pair(1000 * MIB, source=4 * MIB):
            pass
        with reserve.hold(14 * MIB), pytest.raises(Unavailable), reserve.hold(1):
            pass
    with reserve.hold(40 * MIB):
        pass
    assert not reserve.is_short
    disk.free = 11 * MIB
    assert reserve.is_short
    assert DiskReserve(tmp_path / "gone").measure()[0] >= 0


async def test_a_flood_of_uploads_leaves_the_reserve_to_the_state(small: Path, tmp_path: Path) -> None:
    rig = Rig(small, Base("small", write_base(tmp_path / "base"), max_rank=16))
    await rig.service.start()
    write_adapter(tmp_path / "a", seed=0)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for file in sorted((tmp_path / "a").iterdir()):
            tar.add(file, arcname=file.name)
    free, reserved = rig.service.reserve.measure()
    filler = small / "filler"
    filler.write_bytes(b"x" * (free - reserved - 12 * (tmp_path / "a.tar").stat().st_size))
    refused, added = [], 0
    for seed in range(40):
        write_adapter(tmp_path / f"a{seed}", seed=seed)
        with tarfile.open(tmp_path / f"{seed}.tar", "w") as tar:
            for file in sorted((tmp_path / f"a{seed}").iterdir()):
                tar.add(file, arcname=file.name)
    flood = [
        rig.service.register(f"n{seed}", rig.base, UploadedArchive(tmp_path / f"{seed}.tar"), team="a")
        for seed in range(40)
    ]
    for answer in await asyncio.gather(*flood, return_exceptions=True):
        if isinstance(answer, Unavailable):
            refused.append(answer.code)
        else:
            assert not isinstance(answer, BaseException), answer
            added += 1
    assert added
    assert set(refused) == {"storage_full"}
    assert rig.service.reserve.measure()[0] >= reserved
    name = rig.service.list()[0].key.name
    assert (await rig.service.share(AdapterKey("small", name, "a"), True)).shared, "the state can be written"
    filler.unlink()
    again = UploadedArchive(tmp_path / "39.tar")
    assert (await rig.service.register("later", rig.base, again, team="b")).created
    await rig.service.close()
    rig.state.close()
