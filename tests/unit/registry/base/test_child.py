"""Child processes of the server: their pipes, their end, and starting them without a fork."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.checker import Checker
from adapters.compose.jobs import compose
from adapters.jobs import Job
from adapters.types import Base
from batches.check_process import InputJob
from batches.intake.checker import InputChecker
from launch.checks.checker import FileChecker
from launch.conversion.whisper import Conversions
from registry.base.child import Child
from registry.base.control_groups import OomKills
from registry.bounds import Bounds
from registry.errors import EngineFailed, Unavailable
from tests.eventually import PATIENCE

UNDER_UVLOOP = """
import asyncio, os, sys
from pathlib import Path
import uvloop
from registry.base.child import Child
from tests.eventually import PATIENCE

os.register_at_fork(before=lambda: os._exit(3))  # OpenBLAS's fork handler may never return

async def main():
    child = await Child.start("/bin/cat", cwd=Path("/"))
    child.stdin.write(b"hello\\n")
    await child.stdin.drain()
    assert await child.stdout.readline() == b"hello\\n"
    child.kill()
    assert await child.wait() == -9

uvloop.run(main())
print("not forked")
"""


CLOSED_TWICE = """
import asyncio, os
from pathlib import Path
import uvloop
from registry.base.child import Child
from tests.eventually import PATIENCE

opened, closed = [], []

def open_before_close(pipe):
    \"\"\"Like a thread that opens files, take the number as soon as it is free.\"\"\"
    number, close = pipe.fileno(), pipe.close

    def opened_first():
        while number not in opened and (not opened or opened[-1] < number):
            opened.append(os.open(os.devnull, os.O_RDONLY))
        close()
        closed.append(number)

    pipe.close = opened_first

async def main():
    child = await Child.start("/bin/cat", cwd=Path("/"))
    open_before_close(child.stdin.transport.get_extra_info("pipe"))
    child.kill()
    await child.wait()
    async with asyncio.timeout(PATIENCE):
        while not closed:
            await asyncio.sleep(0.01)
    assert set(closed) <= set(opened), "its number was free when the pipe was closed"

uvloop.run(main())
for number in opened:
    os.fstat(number)
print("still open")
"""


async def test_a_child_gets_input_answers_and_ends(tmp_path: Path) -> None:
    script = "import os, sys; print(sys.stdin.readline().strip(), os.getcwd(), os.environ['WORD']); sys.exit(7)"
    child = await Child.start(sys.executable, "-c", script, cwd=tmp_path, env={"WORD": "so"})
    child.stdin.write(b"heard\n")
    assert (await child.stdout.readline()).decode().split() == ["heard", str(tmp_path), "so"]
    assert await child.stdout.read() == b""
    assert await asyncio.gather(child.wait(), child.wait()) == [7, 7]
    assert child.returncode == 7
    child.kill()  # no effect after its end


async def test_all_waiters_learn_of_a_kill_and_no_file_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    child = await Child.start("/bin/cat", cwd=tmp_path)
    assert child.returncode is None
    assert (os.getpgid(child.pid), os.getsid(child.pid)) == (child.pid, os.getsid(0)), (
        "in another session its niceness would have no effect"
    )
    waiting = [asyncio.ensure_future(child.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    os.kill(child.pid, signal.SIGKILL)
    assert await asyncio.gather(*waiting) == [-signal.SIGKILL] * 2
    assert await child.stdout.read() == b""
    async with asyncio.timeout(PATIENCE):
        while len(os.listdir("/proc/self/fd")) > before + 1:  # one is the listing's own
            await asyncio.sleep(0.01)


def test_no_file_of_another_thread_is_closed_under_uvloop() -> None:
    """Data would be written to whatever has the number by then, such as another client's connection."""
    ended = subprocess.run([sys.executable, "-c", CLOSED_TWICE], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.stdout == "still open\n", ended.stderr


def test_nothing_is_forked_under_uvloop() -> None:
    done = subprocess.run([sys.executable, "-c", UNDER_UVLOOP], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout.strip()) == (0, "not forked"), done.stderr


@pytest.mark.parametrize(
    ("command", "has_killed", "is_memory"),
    [("kill -9 $$", True, True), ("kill -9 $$", False, False), ("kill -11 $$", True, False), ("exit 1", True, False)],
)
async def test_only_a_kill_by_the_kernel_counts_as_out_of_memory(
    command: str, has_killed: bool, is_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OomKills, "has_killed", lambda self: has_killed)
    child = await Child.start("/bin/sh", "-c", command, cwd=Path("/"))
    assert await child.stdout.readline() == b""
    assert await child.ran_out_of_memory() is is_memory


async def adapters(folder: Path) -> None:
    await Checker(1).check(Job(folder, Base("base", folder, 8), Bounds()))


async def combination(folder: Path) -> None:
    job: Any = {}
    await compose(job)


async def model_files(folder: Path) -> None:
    recipe: Any = SimpleNamespace(model_dump_json=lambda: "{}")
    await FileChecker()._run(recipe, folder)


async def conversion(folder: Path) -> None:
    await Conversions(folder)._run(folder, folder / "converted", lambda *_: None)


async def batch(folder: Path) -> None:
    await InputChecker(1).summarise(InputJob(path=folder, urls=(), most_lines=1, line_bytes=1, values=1))


@pytest.mark.parametrize("work", [adapters, combination, model_files, conversion, batch])
@pytest.mark.parametrize("has_killed", [True, False])
async def test_work_whose_process_the_kernel_killed_for_memory_may_be_tried_again(
    work: Callable[[Path], Awaitable[None]], has_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed by anything else is no reason to hope, since its files may be the cause."""

    async def killed(module: str, *_: str, env: object = None, limit: int = 0) -> Child:
        begin = "echo ready; " if module == "adapters.check_process" else ""
        return await Child.start("/bin/sh", "-c", f"{begin}kill -9 $$", cwd=Path("/"))

    monkeypatch.setattr(Child, "python", killed)
    monkeypatch.setattr(OomKills, "has_killed", lambda self: has_killed)
    with pytest.raises(Unavailable if has_killed else EngineFailed) as failed:
        await work(tmp_path)
    assert (failed.value.code == "out_of_memory") is has_killed, failed.value.message
    assert "ran out of memory while it" in failed.value.message or not has_killed
