"""The world that most tests of residency use."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.residency.scripted import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.manager.close()
    await world.pool.close()
