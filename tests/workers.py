"""Which tests run in one worker of pytest-xdist: those of a file, and all files that share a server or an engine."""

from collections.abc import Mapping, Sequence

import pytest
from xdist.scheduler import LoadGroupScheduling

GROUPS: Mapping[str, str] = {
    "server": "server",
    "thinker": "server",
    "locked": "locked",
    "servers": "fleet",
    "bench": "engine",
}
"""Fixtures that many files share to their group. Each takes half a minute to make, in every worker that needs it."""


def mark_groups(tests: Sequence[pytest.Function]) -> None:
    """Mark all tests of each file that uses such a fixture. A file with a fixture of its own by that name does not."""
    groups = {
        test.path: group
        for test in tests
        for fixture, group in GROUPS.items()
        if fixture in test.fixturenames and not hasattr(test.module, fixture)
    }
    for test in tests:
        if group := groups.get(test.path):
            test.add_marker(pytest.mark.xdist_group(group))


def group_of(test: pytest.Item | None) -> str:
    """A test's group, in a worker; empty where it has none."""
    mark = None if test is None else test.get_closest_marker("xdist_group")
    return "" if mark is None else str(mark.args[0])


def is_last_of_group(test: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether a worker has run a group's last test, and goes on with others."""
    return following is not None and group_of(test) not in ("", group_of(following))


def without_group(name: str) -> str:
    """A test's name without the group that xdist writes behind it."""
    return name.rpartition("@")[0] if name.rfind("@") > max(name.rfind("]"), 0) else name


class GroupsOfFiles(LoadGroupScheduling):
    """Like `--dist loadfile`, but the files of a group are one piece of work."""

    def _split_scope(self, nodeid: str) -> str:
        group = str(super()._split_scope(nodeid))
        return nodeid.split("::", 1)[0] if group == nodeid else group
