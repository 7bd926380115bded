"""A base model, a folder for an adapter, and registration with its processes."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from adapters import checker
from adapters.types import Base
from tests.eventually import PATIENCE
from tests.unit.adapters.makers import write_base
from tests.unit.adapters.rig import Rig


@pytest.fixture(scope="session", autouse=True)
def patient_checkers() -> Iterator[None]:
    """Give new processes more time to be ready on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checker, "_START", PATIENCE)
        yield


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """Return a small Llama that allows adapters of up to rank 16."""
    return Base("small", write_base(tmp_path_factory.mktemp("base")), max_rank=16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for a test's adapter."""
    return tmp_path / "adapter"


@pytest.fixture
async def rig(tmp_path: Path, base: Base) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path / "data", base)
    await rig.service.start()
    yield rig
    await rig.service.close()
    rig.state.close()
