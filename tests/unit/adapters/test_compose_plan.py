"""The plan of a combination: peft's method and rank, and whether there is memory for a merge."""

from pathlib import Path
from typing import Any

import pytest

from adapters.compose.jobs import Method, compose, plan
from adapters.compose.model import Needs, check_room
from registry.base import control_groups
from registry.base.child import Child
from registry.errors import BadRequest, Unavailable


@pytest.mark.parametrize(
    ("method", "ranks", "halves", "kind", "rank"),
    [
        ("linear", [8, 8], False, "cat", 16),
        ("linear", [8, 4], False, "cat", 12),
        ("linear", [8, 16], False, "svd", 16),
        ("ties", [8, 4], False, "ties_svd", 12),
        ("ties", [16, 16], False, "ties_svd", 16),
        ("dare", [8, 8], False, "dare_linear_svd", 16),
        ("linear", [16, 16], True, "linear", 16),
        ("ties", [8, 8, 8], True, "ties", 8),
        ("dare", [8, 8], True, "dare_linear", 8),
    ],
)
def test_kind_and_rank(method: Method, ranks: list[int], halves: bool, kind: str, rank: int) -> None:
    assert plan(method, ranks, 16, halves=halves) == (kind, rank)


def test_halves_need_one_rank() -> None:
    with pytest.raises(BadRequest, match="ranks 8, 4") as refused:
        plan("ties", [8, 4], 16, halves=True)
    assert refused.value.param == "halves"


def test_a_containers_limit_counts_as_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When only the machine's memory counted, the kernel killed the process, or the server around it."""
    inner, outer = tmp_path / "outer" / "inner", tmp_path / "outer"
    inner.mkdir(parents=True)
    monkeypatch.setattr(control_groups, "folders", lambda _: [inner, outer])
    expected = Needs(memory=1 << 20, disk=1)
    check_room(expected, tmp_path)
    (outer / "memory.max").write_text(f"{3 << 20}\n")
    (outer / "memory.current").write_text(f"{5 << 19}\n")
    with pytest.raises(Unavailable, match=r"and 512\.0 KiB are free") as error:
        check_room(expected, tmp_path)
    assert error.value.code == "out_of_memory"
    (outer / "memory.stat").write_text(f"anon 7\ninactive_file {1 << 19}\n")  # memory that the kernel can reclaim
    check_room(expected, tmp_path)
    (inner / "memory.limit_in_bytes").write_text(f"{2 << 20}\n")
    (inner / "memory.usage_in_bytes").write_text(f"{3 << 20}\n")
    with pytest.raises(Unavailable, match="and 0 Bytes are free"):
        check_room(expected, tmp_path)


async def test_waiting_threads_of_the_process_take_no_core_from_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}

    async def refused(module: str, env: dict[str, str]) -> Child:
        environment.update(env)
        raise BlockingIOError

    monkeypatch.setattr(Child, "python", refused)
    job: Any = {}
    with pytest.raises(BlockingIOError):
        await compose(job)
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
