"""A state on a disk of its own, and recipe files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.state.database import State
from tests.unit.registry.recipes.files import Write


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    ticks = iter(range(1, 1_000_000))
    with State(tmp_path / "data", clock=lambda: float(next(ticks))) as opened:
        yield opened


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writes(text: str | bytes, name: str = "r.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return writes
