"""A gateway is put together as its settings and its device say."""

from pathlib import Path

import pytest

from registry.recipes.loading import Documents
from runtime.gateway.opening import open_gateway
from runtime.residency.victims import NO_LIMIT
from runtime.server.device import Device
from runtime.server.settings import Settings


@pytest.mark.parametrize(
    ("device", "host_budget"),
    [(Device("cpu", "cpu", "cpu", 100, 100), NO_LIMIT), (Device("cuda", "cuda:0", "GPU", 100, 100, 100, 0), 0)],
    ids=["on a CPU", "beside a GPU"],
)
async def test_no_host_memory_is_none_beside_a_gpu(tmp_path: Path, device: Device, host_budget: int) -> None:
    settings = Settings(recipes=(), data_dir=tmp_path / "data", run_dir=tmp_path / "run", prewarm=False, watch=False)
    async with open_gateway(settings, Documents(), device) as gateway:
        assert gateway._residency.table.host_budget == host_budget
