"""Fixtures for tests with real libraries."""

import pytest

from tests.contract.vllm.cpu.ways import WAYS, way


@pytest.fixture(params=WAYS)
def cpu_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM's LoRA layers on a CPU compute in one way, then in the other."""
    chosen = way(request.param)
    monkeypatch.setattr("models.chat.vllm.cpu.punica.load", lambda: chosen)
