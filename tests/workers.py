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


def without_group(name: str) -> str:
    """A test's name without the group that xdist writes behind it."""
    return name.rpartition("@")[0] if name.rfind("@") > max(name.rfind("]"), 0) else name


class GroupsOfFiles(LoadGroupScheduling):
    """Like `--dist loadfile`, but the files of a group are one piece of work."""

    def _split_scope(self, nodeid: str) -> str:
        group = str(super()._split_scope(nodeid))
        return nodeid.split("::", 1)[0] if group == nodeid else group
