"""Child processes of the server, started without a fork of itself.

uvloop's own `subprocess_exec` forks. Before a fork, OpenBLAS (part of numpy) stops its threads and waits for them. If
another thread computes at that time, it waits forever and blocks the event loop. `subprocess.Popen` uses vfork(), which
runs no such handlers.

uvloop closes a pipe's descriptor itself, and then the pipe object. Between the two, another thread may open a file that
gets the same number and would be closed: perhaps a client's connection, into which another client's data would then be
written. So a pipe passed to uvloop must not close its descriptor itself (`_own_end`).
"""

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from registry.base.control_groups import OomKills
from registry.errors import Unavailable

PACKAGES = Path(__file__).resolve().parents[2]


def with_our_packages(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds our packages first, and never the current folder.

    Our packages have common names, and a `models/` in the folder where the server was started must not be imported.
    """
    others = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(PACKAGES)]
    return {**env, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(PACKAGES), *others])}


LINE = 1 << 16
"""Default bound on a line read by `stdout.readline`, in bytes, as in asyncio."""


class Child:
    """A process in its own group, with pipes. Its owner must finally call `wait`."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader
    ) -> None:
        self.stdin, self.stdout, self._process = stdin, stdout, process
        self.kills = OomKills()
        """Reset it before each job of a process that lasts."""

    @classmethod
    async def start(cls, *command: str, cwd: Path, env: Mapping[str, str] | None = None, limit: int = LINE) -> Self:
        """Start a command, which inherits stderr. Raises OSError."""
        loop, process = asyncio.get_running_loop(), _spawn(command, cwd, env)
        reading: asyncio.BaseTransport | None = None
        try:
            stdout = asyncio.StreamReader(limit)
            reading, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(stdout), _own_end(process.stdout, loop)
            )
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), _own_end(process.stdin, loop)
            )
        except BaseException:
            if reading is not None:
                reading.close()
            process.kill()
            process.wait()
            raise
        return cls(process, asyncio.StreamWriter(transport, protocol, None, loop), stdout)

    @classmethod
    async def python(cls, module: str, *words: str, env: Mapping[str, str] | None = None, limit: int = LINE) -> Self:
        """Run one of our modules, never an operator's module of the same name. Raises OSError."""
        env = with_our_packages(os.environ if env is None else env)
        return await cls.start(sys.executable, "-P", "-m", module, *words, cwd=PACKAGES, env=env, limit=limit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status: None while it runs, negative for the signal that ended it."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the process. Does nothing if it has ended."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait until the process has ended, and return its exit status."""
        if self._process.poll() is None:
            await self._wait_for_end()
        self.stdin.close()
        return self._process.wait()

    async def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended the process, whose pipe broke, because memory had run out."""
        self.kill()
        return await self.wait() == -signal.SIGKILL and self.kills.has_killed()

    async def _wait_for_end(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            watched = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            loop.add_reader(watched, ended.set)
            await ended.wait()
        finally:
            loop.remove_reader(watched)
            os.close(watched)


def out_of_memory(during: str) -> Unavailable:
    """Return the error for a process that ran out of memory. during: 'while it checked the adapter', and so on."""
    return Unavailable(f"The server ran out of memory {during}. Try again.", code="out_of_memory", retry_after=5)


def _own_end(pipe: IO[bytes] | None, loop: asyncio.AbstractEventLoop) -> io.FileIO:
    """Return our end of a pipe, whose descriptor only the transport closes."""
    assert pipe is not None
    descriptor, mode = os.dup(pipe.fileno()), "rb" if pipe.readable() else "wb"
    pipe.close()
    return io.FileIO(descriptor, mode, closefd=not type(loop).__module__.startswith("uvloop"))


def _spawn(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None) -> "subprocess.Popen[bytes]":
    """Start a program. Blocks for some milliseconds. It stays in our session, as `nice` counts within a session."""
    return subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
