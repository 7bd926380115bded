"""Child processes of the server, started without a fork of itself.

uvloop's own `subprocess_exec` forks. Before a fork OpenBLAS, which numpy brings, ends its threads and waits for them:
beside another thread that computes it waits for ever, and the whole event loop with it. `subprocess.Popen` uses
vfork(), before which nothing is called.

uvloop closes the descriptor of a pipe that it was given, and then the pipe. Between the two another thread may open a
file of the same number: it would lose it, perhaps to a client's connection, and write into that what is another
client's. So a pipe that is given to uvloop does not close its descriptor (`_own_end`).
"""

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

PACKAGES = Path(__file__).resolve().parents[2]


def with_our_packages(env: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Python finds our packages first, and no user's folder.

    The names of our packages are common words: a `models/` where the server was started must never be imported.
    """
    others = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(PACKAGES)]
    return {**env, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(PACKAGES), *others])}


LINE = 1 << 16
"""Default bound on a line that `stdout.readline` reads, in bytes, as in asyncio."""


class Child:
    """A process in its own group, with pipes. Its owner must call `wait` in the end."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader
    ) -> None:
        self.stdin, self.stdout, self._process = stdin, stdout, process

    @classmethod
    async def start(cls, *command: str, cwd: Path, env: Mapping[str, str] | None = None, limit: int = LINE) -> Self:
        """Raises OSError. stderr is the server's."""
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
        """Run one of our modules, never an operator's of that name. Raises OSError."""
        env = with_our_packages(os.environ if env is None else env)
        return await cls.start(sys.executable, "-P", "-m", module, *words, cwd=PACKAGES, env=env, limit=limit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status; None: it runs. Below 0: the signal that ended it."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill it; nothing happens if it has ended."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait until it has ended, and return its code."""
        if self._process.poll() is None:
            await self._wait_for_end()
        self.stdin.close()
        return self._process.wait()

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


def _own_end(pipe: IO[bytes] | None, loop: asyncio.AbstractEventLoop) -> io.FileIO:
    """Our end of a pipe, for the transport that closes it: no other object has its descriptor."""
    assert pipe is not None
    descriptor, mode = os.dup(pipe.fileno()), "rb" if pipe.readable() else "wb"
    pipe.close()
    return io.FileIO(descriptor, mode, closefd=not type(loop).__module__.startswith("uvloop"))


def _spawn(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None) -> "subprocess.Popen[bytes]":
    """Start a program; blocks some milliseconds. `nice` counts within its session."""
    return subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
