"""Uploads on disk: no team, key or address can lock out others, and none uses the disk's reserve."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from registry.bounds import Bounds
from registry.errors import QueueFull, Unavailable
from registry.storage.reserve import DiskReserve
from runtime.gateway.uploads import Uploads, UploadShare
from runtime.http.guard.memory import SHARES, owners_of
from tenants.caller import Caller

MOST, LARGEST = 1000, 100


class Desk:
    """Uploads of some callers that do not end."""

    def __init__(self, stack: ExitStack, folder: Path, reserve: DiskReserve | None = None) -> None:
        self.uploads = Uploads(MOST, LARGEST, Bounds(), reserve or DiskReserve(folder, 0))
        self._stack, self._folder = stack, folder

    def upload(self, caller: Caller, address: str, size: int) -> UploadShare:
        shares = {owner: SHARES[owner[0]] for owner in owners_of(caller, address)}
        share = self._stack.enter_context(self.uploads.share(self._folder, shares))
        share.add(size)
        return share


def test_one_key_and_one_team_leave_room_for_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        desk = Desk(stack, tmp_path)
        first = desk.upload(Caller("a", "a1"), "10.0.0.1", 500)
        with pytest.raises(QueueFull, match=r"of your key .* hold 500 bytes, and 500 is") as refused:
            desk.upload(Caller("a", "a1"), "10.0.0.2", 1)
        assert refused.value.code == "uploads_full"
        desk.upload(Caller("a", "a2"), "10.0.0.2", 250)
        with pytest.raises(QueueFull, match="of your team"):
            desk.upload(Caller("a", "a3"), "10.0.0.3", 1)
        desk.upload(Caller("b", "b1"), "10.0.0.4", 250)
        with pytest.raises(QueueFull, match="of all requests"):
            desk.upload(Caller("b", "b1"), "10.0.0.4", 1)
        first.end()
        desk.upload(Caller("b", "b1"), "10.0.0.4", 250)
        first.add(250)
    assert desk.uploads.held == 0


def test_a_share_is_large_enough_for_the_largest_upload(tmp_path: Path) -> None:
    with ExitStack() as stack:
        uploads = Uploads(MOST, 900, Bounds(), DiskReserve(tmp_path, 0))
        stack.enter_context(uploads.share(tmp_path, {("of your key", "a"): 0.5})).add(900)


def test_the_reserve_counts_only_bytes_that_are_not_yet_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = DiskReserve(tmp_path)
    monkeypatch.setattr(reserve, "measure", lambda: (300, 100))
    with ExitStack() as stack:
        desk = Desk(stack, tmp_path, reserve)
        share = desk.upload(Caller("a", "a1"), "x", 150)
        with pytest.raises(Unavailable) as refused:
            desk.upload(Caller("b", "b1"), "y", 51)
        assert refused.value.code == "storage_full"
        share.written()
        desk.upload(Caller("b", "b1"), "y", 200)
        with desk.uploads.share(Path("/proc"), {}) as outside:
            outside.add(500)
    with reserve.hold(200):
        pass
