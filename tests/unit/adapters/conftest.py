from pathlib import Path

import pytest

from adapters.types import Base
from tests.unit.adapters.makers import write_base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """A small Llama with room for rank 16."""
    return Base("small", write_base(tmp_path_factory.mktemp("base")), max_rank=16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test writes its adapter."""
    return tmp_path / "adapter"
