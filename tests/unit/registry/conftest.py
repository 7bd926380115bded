"""States in each kind of database, in new folders."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.state.database import State
from tests.unit.registry.recipes.files import Write


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str | None:
    """Return a URL for `--database`; None for SQLite. Each data directory has its own tables on PostgreSQL."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def state(url: str | None, tmp_path: Path) -> Iterator[State]:
    """Yield a state in each kind of database."""
    yield from _opened(tmp_path, url)


@pytest.fixture
def in_file(tmp_path: Path) -> Iterator[State]:
    """Yield a state in SQLite."""
    yield from _opened(tmp_path)


def _opened(folder: Path, url: str | None = None) -> Iterator[State]:
    ticks = iter(range(1, 1_000_000))
    with State(folder / "data", clock=lambda: float(next(ticks)), url=url) as opened:
        yield opened


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writes(text: str | bytes, name: str = "r.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return writes
