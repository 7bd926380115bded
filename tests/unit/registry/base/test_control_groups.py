"""The folders of a process's control groups, and the cores that they allow it."""

import os
from pathlib import Path

import pytest

from registry.base import control_groups
from registry.base.control_groups import nested
from registry.base.processor import cores
from tests.fakes.control_groups import make_groups

V1 = "9:name=systemd:/\n4:memory:/a/b\n0::/elsewhere\n"
V2 = "0::/user.slice/it.service\n"


def test_groups_are_listed_from_the_innermost_to_the_outermost(tmp_path: Path) -> None:
    inner, outer, base = make_groups(tmp_path, "memory/a/b", "memory/a", "memory")
    assert nested(V1, tmp_path, "memory") == [inner, outer, base]
    service, part = make_groups(tmp_path, "user.slice/it.service", "user.slice")
    assert nested(V2, tmp_path, "memory") == [service, part, tmp_path]


def test_a_container_sees_its_own_group_as_the_outermost(tmp_path: Path) -> None:
    assert nested("0::/docker/0123\n", tmp_path, "memory") == [tmp_path]
    assert nested("0::/\n", tmp_path, "memory") == [tmp_path]
    assert nested(V1, tmp_path / "nothing is mounted", "memory") == []


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        ({}, 64),
        ({"inner/cpu.max": "max 100000\n"}, 64),
        ({"inner/cpu.max": "50000 100000\n"}, 1),
        ({"inner/cpu.max": "max 100000\n", "cpu.max": "250000 100000\n"}, 3),
        ({"inner/cpu.cfs_quota_us": "-1\n", "inner/cpu.cfs_period_us": "100000\n"}, 64),
        ({"inner/cpu.cfs_quota_us": "200000\n", "inner/cpu.cfs_period_us": "100000\n"}, 2),
        ({"inner/cpu.max": "9900000 100000\n"}, 64),
    ],
)
def test_a_containers_quota_bounds_the_cores(
    files: dict[str, str], allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [inner] = make_groups(tmp_path, "inner")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(control_groups, "folders", lambda controller, pid="self": [inner, tmp_path])
    assert cores() == allowed
