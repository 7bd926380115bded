"""Where a process's memory group lies, and what it tells."""

import os
from pathlib import Path

import pytest

from models.process_control import LOADS, SERVES, OomPriority, memory_limit
from registry.base import control_groups
from registry.base.control_groups import OomKills
from tests.fakes.control_groups import make_groups


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A group of this process's with one around it."""
    inner, outer = make_groups(tmp_path, "outer/inner", "outer")
    monkeypatch.setattr(control_groups, "folders", lambda controller, pid="self": [inner, outer])
    return inner


def test_the_least_limit_counts(group: Path) -> None:
    assert memory_limit() is None
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("3000\n")
    assert memory_limit() == 3000
    (group / "memory.max").write_text("2000\n")
    assert memory_limit() == 2000


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("memory.events", "low 0\noom 9\noom_kill {}\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ],
)
def test_only_kills_since_the_last_look_count(group: Path, file: str, text: str) -> None:
    (group.parent / file).write_text(text.format(100))
    (group / file).write_text(text.format(3))
    kills = OomKills()
    assert not kills.has_killed()
    (group / file).write_text(text.format(4))
    assert kills.has_killed()
    kills.reset()
    assert not kills.has_killed()


def test_a_slot_that_loads_is_ended_before_one_that_serves_and_before_the_gateway() -> None:
    """In a process group of its own: the score of pytest's stays."""
    own = Path("/proc/self/oom_score_adj").read_text()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        expendable, seen = OomPriority(), []
        expendable.mark_serving()
        seen.append(Path("/proc/self/oom_score_adj").read_text().strip())
        with expendable.loads():
            seen.append(Path("/proc/self/oom_score_adj").read_text().strip())
        seen.append(Path("/proc/self/oom_score_adj").read_text().strip())
        os.write(write, " ".join(seen).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    found = [int(score) for score in os.read(read, 100).split()]
    os.close(read)
    os.close(write)
    assert found == [min(1000, int(own) + more) for more in (SERVES, LOADS, SERVES)]
    assert Path("/proc/self/oom_score_adj").read_text() == own
