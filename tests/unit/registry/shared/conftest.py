"""A new fleet for each test."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.unit.registry.shared.rig import Sharers, sharers


@pytest.fixture
def fleet(postgres_url: str, tmp_path: Path) -> Iterator[Sharers]:
    with sharers(postgres_url, f"roundhouse_fleet_{uuid4().hex[:8]}", tmp_path) as made:
        yield made
