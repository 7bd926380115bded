"""A memory cgroup for a server, in which the kernel really kills processes when memory runs out."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from registry.base import control_groups
from tests.eventually import PATIENCE
from tests.system.serving import Server

NAMES = {
    "memory.max": ("memory.current", "memory.events", "memory.swap.max", ("inactive_file", "active_file")),
    "memory.limit_in_bytes": (
        "memory.usage_in_bytes",
        "memory.oom_control",
        "memory.swappiness",
        ("total_inactive_file", "total_active_file"),
    ),
}
"""By the file of the limit: the files of usage, kills and swap, and the name in memory.stat; cgroup v2, then v1."""


class MemoryLimit:
    """A context manager with a group inside this process's own one, whose limits apply to it, too.

    Skips the test if no group can be made: not root, a read-only mount, or no memory controller below this group.
    """

    def __enter__(self) -> Self:
        around = control_groups.folders("memory")[:1]
        self._folder = (around[0] if around else Path("/nowhere")) / f"roundhouse-test-{time.monotonic_ns()}"
        try:
            self._folder.mkdir()
        except OSError as error:
            pytest.skip(f"no memory group can be made here: {error}")
        self._limit = next((name for name in NAMES if (self._folder / name).exists()), "")
        if not self._limit:
            self._folder.rmdir()
            pytest.skip("this process's memory group hands no memory controller down")
        self._usage, self._kills, swap, self._cache = NAMES[self._limit]
        with contextlib.suppress(OSError):  # a kernel without swap does not have these files
            (self._folder / swap).write_text("0")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._folder.rmdir()
                return
            except OSError:  # processes that are still ending
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def take(self, server: Server) -> None:
        """Move a server that has just started into the group, with all processes that it will start."""
        for process in server.family():
            (self._folder / "cgroup.procs").write_text(str(process.pid))

    def holds(self) -> int:
        """Return the bytes in use without the page cache, which the kernel frees before it kills."""
        stat = dict(line.split() for line in (self._folder / "memory.stat").read_text().splitlines())
        return int((self._folder / self._usage).read_text()) - sum(int(stat[name]) for name in self._cache)

    @contextlib.contextmanager
    def leaves(self, room: int) -> Iterator[None]:
        """Limit the group to `room` bytes more than it uses now, inside this context."""
        file = self._folder / self._limit
        file.write_text(str(self.holds() + room))
        try:
            yield
        finally:
            file.write_text("max" if self._limit == "memory.max" else "-1")

    def kills(self) -> int:
        lines = (self._folder / self._kills).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
