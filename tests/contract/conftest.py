"""Fixtures for tests with real libraries."""

import pytest

from tests.contract.vllm.cpu.ways import WAYS, way


@pytest.fixture(params=WAYS)
def cpu_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with each way of computing vLLM's LoRA layers on a CPU."""
    chosen = way(request.param)
    monkeypatch.setattr("models.chat.vllm.cpu.punica.load", lambda: chosen)


@pytest.fixture
def patched_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch vLLM's loader of adapters until the end of the test."""
    from vllm.lora import lora_model

    from models.chat.vllm.adapters import read

    monkeypatch.setattr(lora_model, "safetensors", lora_model.safetensors)  # so that it is restored
    read.patch_loader(lora_model)


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take ordinary memory for what a GPU's host would pin, because pinning needs a driver."""
    import torch

    from models.chat.vllm.adapters import read

    monkeypatch.setattr(read, "_empty", lambda count, dtype, pinned: torch.empty(count, dtype=dtype))
