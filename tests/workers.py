"""Which tests run in one worker of pytest-xdist: those of a file, and all files that share a server or an engine.

The name that a worker reports for a test of a group ends with '@' and the group: the scheduler sees nothing else of it.
"""

from collections.abc import Mapping, Sequence

import pytest
from xdist.scheduler import LoadGroupScheduling

GROUPS: Mapping[str, str] = {
    "tests.conftest.server": "server",
    "tests.conftest.thinker": "server",
    "tests.conftest.locked": "locked",
    "tests.system.fleet.conftest.servers": "fleet",
    "tests.contract.chat_engine.conftest.bench": "engine",
}
"""Fixtures that many files share, to their group. Each takes half a minute to make, in every worker that needs it."""


def mark_groups(tests: Sequence[pytest.Function], groups: Mapping[str, str] = GROUPS) -> None:
    """Mark and rename all tests of each file that uses such a fixture.

    pytest-xdist 3.8 renames them itself, in an attribute that pytest 9.2 does not have.
    """
    files = {test.path: groups[fixture] for test in tests for fixture in _fixtures(test) if fixture in groups}
    for test in tests:
        if group := files.get(test.path):
            test.add_marker(pytest.mark.xdist_group(group))
            test._id = test.id.parse(f"{test.nodeid}@{group}")


def _fixtures(test: pytest.Function) -> set[str]:
    """Module and name of each fixture that a test uses. Others may have the same name."""
    definitions = test._fixtureinfo.name2fixturedefs.values()
    return {f"{one.func.__module__}.{one.func.__name__}" for several in definitions for one in several[-1:]}


def group_of(test: pytest.Item | None) -> str:
    """A test's group, in a worker; empty where it has none."""
    mark = None if test is None else test.get_closest_marker("xdist_group")
    return "" if mark is None else str(mark.args[0])


def is_last_of_group(test: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether a worker has run a group's last test, and goes on with others."""
    return following is not None and group_of(test) not in ("", group_of(following))


def without_group(name: str) -> str:
    """A test's name without the group behind it."""
    return name.rpartition("@")[0] if name.rfind("@") > max(name.rfind("]"), 0) else name


class GroupsOfFiles(LoadGroupScheduling):
    """Like `--dist loadfile`, but the files of a group are one piece of work."""

    def _split_scope(self, nodeid: str) -> str:
        group = str(super()._split_scope(nodeid))
        return nodeid.split("::", 1)[0] if group == nodeid else group
