"""Many adapters at once: those that wait for their check take nothing from other teams."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from adapters.jobs import Job
from adapters.types import Base, CheckedAdapter, UploadedArchive
from registry.storage.reserve import DiskReserve
from tests.eventually import PATIENCE
from tests.unit.adapters.rig import Rig

FREE = 64 << 30


class GatedChecker:
    """Runs checks one after the other, each when `let` allows it."""

    def __init__(self) -> None:
        self.checked, self._gate = list[str](), asyncio.Semaphore(0)

    def let(self, count: int) -> None:
        for _ in range(count):
            self._gate.release()

    async def check(self, job: Job) -> CheckedAdapter:
        await self._gate.acquire()
        source, out = job.source, job.out
        assert out is not None
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (out / name).write_text(source.name)
        self.checked.append(source.name)
        return CheckedAdapter(f"sha256:{hashlib.sha256(source.name.encode()).hexdigest()}", 8, 10, ())

    async def close(self) -> None: ...


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(DiskReserve, "measure", lambda _: (FREE, 0))
    rig = Rig(tmp_path / "data", Base("small", tmp_path, max_rank=16))
    rig.service.store.start()
    rig.service.checker = GatedChecker()  # type: ignore[assignment]
    return rig


async def test_a_team_that_uploads_many_leaves_room_and_turns_to_others(rig: Rig, tmp_path: Path) -> None:
    checker: Any = rig.service.checker

    def upload(name: str, team: str) -> "asyncio.Task[Any]":
        archive = tmp_path / name
        archive.write_bytes(b"packed")
        return asyncio.create_task(rig.service.register(name, rig.base, UploadedArchive(archive), team=team))

    theirs = [upload(f"a{number}", "a") for number in range(40)]
    for _ in range(100):
        await asyncio.sleep(0)
    with rig.service.reserve.hold(FREE // 8):  # raises if the disk counts as full
        ours = upload("b", "b")
        for _ in range(100):
            await asyncio.sleep(0)
        checker.let(5)
        async with asyncio.timeout(PATIENCE):
            await ours
    checker.let(len(theirs))
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*theirs)
    assert checker.checked.index("b") <= 4, checker.checked
    rig.state.close()
