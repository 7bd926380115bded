"""Files that share a server go to one worker; any other file goes to any."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.workers import GroupsOfFiles, is_last_of_group, mark_groups, without_group


class Item:
    """A collected test: what is looked at of it, and the group that it gets."""

    def __init__(self, file: str, *fixtures: str, own: str = "") -> None:
        self.path, self.fixturenames, self.module = Path(file), fixtures, ModuleType(file)
        self.group = ""
        if own:
            setattr(self.module, own, own)

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        assert marker.name == "xdist_group"
        (self.group,) = marker.args

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return pytest.mark.xdist_group(self.group).mark if self.group and name == "xdist_group" else None


def test_each_file_that_uses_a_shared_server_is_of_its_group() -> None:
    tests: Any = [
        Item("a.py", "tmp_path", "server"),
        Item("a.py"),
        Item("b.py", "server", own="server"),
        Item("c.py", "tmp_path"),
        Item("d.py", "thinker"),
        Item("e.py", "servers", "pair"),
        Item("f.py", "locked"),
    ]
    mark_groups(tests)
    assert [test.group for test in tests] == ["server", "server", "", "", "server", "fleet", "locked"]


def test_a_groups_servers_are_closed_before_others_go_on() -> None:
    tests: Any = [Item("a.py", "server"), Item("b.py", "server"), Item("c.py"), Item("d.py", "locked"), Item("e.py")]
    mark_groups(tests)
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
