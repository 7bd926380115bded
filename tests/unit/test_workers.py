"""Files that share a server go to one worker; any other file goes to any."""

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.workers import GROUPS, LONGEST_FIRST, GroupsOfFiles, in_order, is_last_of_group, without_group

CONFTEST = """
import os
from pathlib import Path
import pytest
from tests.conftest import pytest_runtest_logreport, pytest_xdist_make_scheduler
from tests.workers import mark_groups

@pytest.fixture(scope="session")
def shared():
    return os.environ["PYTEST_XDIST_WORKER"]

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_groups(items, {"conftest.shared": "some"})
"""
USES_IT = """
def test_b(shared):
    assert shared

def test_c():
    pass
"""
OWN = """
import pytest

@pytest.fixture
def shared():
    return 1

@pytest.mark.parametrize("name", ["x@y"])
def test_d(shared, name):
    pass
"""


def test_files_of_a_group_run_in_one_worker(tmp_path: Path) -> None:
    """With the pytest and the pytest-xdist that are installed: what is touched of them is private."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("test_1.py", "test_2.py", "test_3.py"):
        (tmp_path / name).write_text(USES_IT)
    (tmp_path / "test_4.py").write_text(OWN)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "-v", "-p",
               "xdist", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]  # fmt: skip
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    clean["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other plugins take most of the time
    done = subprocess.run(command, cwd=tmp_path, env={**clean, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    lines = [line.strip() for line in done.stdout.splitlines() if "PASSED" in line]
    workers = {line.rpartition(" ")[2]: line.partition("]")[0].strip("[") for line in lines}
    assert len(workers) == 7, done.stdout
    alone = workers.pop("test_4.py::test_d[x@y]")
    assert workers.keys() == {f"test_{number}.py::test_{letter}" for number in (1, 2, 3) for letter in "bc"}
    assert len({*workers.values()}) == 1, "which of the two starts first takes the group"
    assert alone not in workers.values(), "it has a fixture of its own by that name"


class Item:
    """A collected test, by the group that it has, its file, and whether it needs a real engine."""

    def __init__(self, group: str, path: str = "", real: bool = False) -> None:
        self.group, self.path, self.real = group, Path(path), real

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        has = {"xdist_group": bool(self.group), "real": self.real}
        return SimpleNamespace(args=(self.group,)) if has[name] else None


def test_files_that_wait_long_come_first_and_tests_of_a_file_stay_together() -> None:
    ordered: Any = [
        Item("server", "docs/test_docs.py"),
        Item("locked", "system/test_keys.py"),
        Item("", "faults/test_kills.py", real=True),
        Item("", "contract/test_audio.py"),
        Item("", "contract/test_audio.py", real=True),
        Item("", "faults/test_sums.py"),
        Item("", "unit/test_rooms.py"),
    ]
    shuffled = [ordered[number] for number in (3, 4, 0, 5, 2, 1, 6)]
    assert in_order(shuffled) == ordered
    assert sorted(LONGEST_FIRST) == sorted(set(GROUPS.values()))


class Worker:
    """A worker that notes what it gets."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.taken += [NAMES[index] for index in indices]


NAMES = [f"test_{number}.py::test_a" for number in range(4)]


def test_the_last_worker_begins_at_the_end() -> None:
    scheduling: Any = object.__new__(GroupsOfFiles)
    first, last = Worker(), Worker()
    scheduling.workqueue = OrderedDict((name.partition("::")[0], {name: False}) for name in NAMES)
    scheduling.assigned_work, scheduling.registered_collections = {first: {}, last: {}}, {first: NAMES, last: NAMES}
    for worker in (first, last, last, first):
        scheduling._assign_work_unit(worker)
    assert (first.taken, last.taken) == ([NAMES[0], NAMES[1]], [NAMES[3], NAMES[2]])


def test_a_groups_servers_are_closed_before_others_go_on() -> None:
    tests: Any = [Item(group) for group in ("server", "server", "", "locked", "")]
    pairs = zip(tests, [*tests[1:], None], strict=True)
    assert [is_last_of_group(one, following) for one, following in pairs] == [False, True, False, True, False]
    assert not is_last_of_group(tests[3], None), "the session ends"


@pytest.mark.parametrize(
    ("collected", "name", "work"),
    [
        ("a/b.py::test_c", "a/b.py::test_c", "a/b.py"),
        ("a/b.py::C::test_c[x@y]", "a/b.py::C::test_c[x@y]", "a/b.py"),
        ("a/b.py::test_c@server", "a/b.py::test_c", "server"),
        ("a/b.py::test_c[x@y]@server", "a/b.py::test_c[x@y]", "server"),
    ],
)
def test_a_piece_of_work_is_a_group_or_else_a_file(collected: str, name: str, work: str) -> None:
    scheduling = object.__new__(GroupsOfFiles)  # one with workers needs a whole session
    assert scheduling._split_scope(collected) == work
    assert without_group(collected) == name
