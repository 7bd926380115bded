"""Which tests run in the same worker of pytest-xdist: those of a file, and all files that share a server or an engine.

The name that a worker reports for a test of a group ends with '@' and the group, because the scheduler only sees names.

Tests of real engines often wait; other tests compute. So that the cores are always busy, the first workers take the
former, beginning with those that take longest, and the last worker takes the latter, from the end. They meet at short
files, so no worker runs a long one alone.
"""

from collections.abc import Mapping, Sequence

import pytest
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

GROUPS: Mapping[str, str] = {
    "tests.conftest.server": "server",
    "tests.conftest.thinker": "server",
    "tests.conftest.locked": "locked",
    "tests.system.fleet.conftest.servers": "fleet",
    "tests.contract.chat_engine.conftest.bench": "engine",
}
"""The group of each fixture that many files share. Each takes half a minute to set up in every worker."""
LONGEST_FIRST = ("server", "locked", "fleet", "engine")
"""The groups by the time that all their files take."""


def mark_groups(tests: Sequence[pytest.Function], groups: Mapping[str, str] = GROUPS) -> None:
    """Mark and rename all tests of each file that uses such a fixture.

    pytest-xdist 3.8 would rename them in an attribute that pytest 9.2 no longer has.
    """
    files = {test.path: groups[fixture] for test in tests for fixture in _fixtures(test) if fixture in groups}
    for test in tests:
        if group := files.get(test.path):
            test.add_marker(pytest.mark.xdist_group(group))
            test._id = test.id.parse(f"{test.nodeid}@{group}")


def in_order(tests: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order for workers: groups, faults, other files with real engines, other files."""
    real = {test.path for test in tests if test.get_closest_marker("real")}

    def place(test: pytest.Item) -> tuple[int, int]:
        if group := group_of(test):
            return 0, LONGEST_FIRST.index(group)
        if test.path not in real:
            return 3, 0
        return (1, 0) if "faults" in test.path.parts else (2, 0)

    return sorted(tests, key=place)


def _fixtures(test: pytest.Function) -> set[str]:
    """Return module and name of each fixture that a test uses, since other fixtures may have the same name."""
    definitions = test._fixtureinfo.name2fixturedefs.values()
    last = [overriding[-1] for overriding in definitions if overriding]
    return {f"{fixture.func.__module__}.{fixture.func.__name__}" for fixture in last}


def group_of(test: pytest.Item | None) -> str:
    """Return a test's group in a worker, or '' if it has none."""
    mark = None if test is None else test.get_closest_marker("xdist_group")
    return "" if mark is None else str(mark.args[0])


def is_last_of_group(test: pytest.Item, following: pytest.Item | None) -> bool:
    """Return whether a worker has run a group's last test and continues with others."""
    return following is not None and group_of(test) not in ("", group_of(following))


def without_group(name: str) -> str:
    """Return a test's name without its group."""
    return name.rpartition("@")[0] if name.rfind("@") > max(name.rfind("]"), 0) else name


class GroupsOfFiles(LoadGroupScheduling):
    """Like `--dist loadfile`, but with all files of a group in the same worker. The last worker begins at the end."""

    def _split_scope(self, nodeid: str) -> str:
        group = str(super()._split_scope(nodeid))
        return nodeid.split("::", 1)[0] if group == nodeid else group

    def _assign_work_unit(self, node: WorkerController) -> None:
        if len(self.nodes) > 1 and node is self.nodes[-1]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
