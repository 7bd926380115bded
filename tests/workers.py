"""Which tests run in the same worker of pytest-xdist: those of a file, and all files that share a server or an engine.

The name that a worker reports for a test of a group ends with '@' and the group, because the scheduler only sees names.
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
"""The group of each fixture that many files share. Each takes half a minute to set up in every worker."""


def mark_groups(tests: Sequence[pytest.Function], groups: Mapping[str, str] = GROUPS) -> None:
    """Mark and rename all tests of each file that uses such a fixture.

    pytest-xdist 3.8 would rename them in an attribute that pytest 9.2 no longer has.
    """
    files = {test.path: groups[fixture] for test in tests for fixture in _fixtures(test) if fixture in groups}
    for test in tests:
        if group := files.get(test.path):
            test.add_marker(pytest.mark.xdist_group(group))
            test._id = test.id.parse(f"{test.nodeid}@{group}")


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
    """Like `--dist loadfile`, but with all files of a group in the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        group = str(super()._split_scope(nodeid))
        return nodeid.split("::", 1)[0] if group == nodeid else group
