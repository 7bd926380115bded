"""DELETE /v1/models/{model}/estimate: what was measured of a model goes, and the next plan is made with its files."""

from pathlib import Path

import httpx
import pytest

from registry.state.database import State
from runtime.residency.record import Found, load_key
from runtime.residency.states import ModelState
from tests.unit.endpoints.fakes import FakeGateway


async def test_measured_figures_of_one_model_are_forgotten(
    client: httpx.AsyncClient, gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Found(tmp_path, "rev", 1234, "from its files")
    monkeypatch.setattr(gateway, "_files", lambda recipe, path: files)
    entry, other = gateway.residency.entries["chat"], gateway.residency.entries["embed"]
    entry.state, entry.needed, entry.after_load, entry.margin = ModelState.ABSENT, 7_300_640_768, 7_300_000_000, 640_768
    with State(tmp_path / "state") as gateway.state:
        for one in (entry, other):
            gateway.state.models.record_load(load_key(one.recipe, gateway.device), 7_300_640_768, {})
        answer = await client.delete("/v1/models/chat/estimate")
        assert (answer.status_code, answer.json()["expected_bytes"]) == (200, 1234)
        assert (entry.needed_detail, entry.after_load, entry.margin) == ("from its files", 0, 0)
        assert gateway.state.models.measured(load_key(entry.recipe, gateway.device)) is None
        assert gateway.state.models.measured(load_key(other.recipe, gateway.device)) is not None
        assert (await client.delete("/v1/models/nobody/estimate")).status_code == 404
