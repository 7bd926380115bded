"""DELETE /v1/models/{model}/estimate removes a model's measurements, so that the next plan uses its files."""

from pathlib import Path

import httpx
import pytest

from registry.state.database import State
from runtime.config.device import Device
from runtime.gateway.files import ModelFiles
from runtime.residency.measurements import FileEstimates, load_key
from runtime.residency.states import ModelState
from tests.unit.http.fakes import FakeGateway, application

CPU = Device("cpu", "cpu", "cpu", 1 << 30, 1 << 30)


async def test_measured_figures_of_one_model_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileEstimates(tmp_path, "rev", 1234, "from its files")
    monkeypatch.setattr(ModelFiles, "_files", lambda self, recipe, path: files)
    with State(tmp_path / "state") as state:
        gateway = FakeGateway(tmp_path, state=state)
        entry, other = gateway.entries["chat"], gateway.entries["embed"]
        entry.state, entry.needed = ModelState.ABSENT, 7_300_640_768
        entry.after_load, entry.margin = 7_300_000_000, 640_768
        for one in (entry, other):
            state.models.record_load(load_key(one.recipe, CPU.label), 7_300_640_768, {})
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.delete("/v1/models/chat/estimate")
            unknown = await client.delete("/v1/models/nobody/estimate")
        assert (answer.status_code, answer.json()["expected_bytes"]) == (200, 1234)
        assert (entry.needed_detail, entry.after_load, entry.margin) == ("from its files", 0, 0)
        assert state.models.measured(load_key(entry.recipe, CPU.label)) is None
        assert state.models.measured(load_key(other.recipe, CPU.label)) is not None
        assert unknown.status_code == 404


async def test_no_plan_is_made_for_an_engine_version_that_the_recipe_excludes(tmp_path: Path) -> None:
    with State(tmp_path / "state") as state:
        gateway = FakeGateway(tmp_path, state=state)
        entry = gateway.entries["chat"]
        expected = entry.recipe.engine.model_copy(update={"versions": "==0.0.1"})
        entry.recipe, entry.path = entry.recipe.model_copy(update={"engine": expected}), tmp_path
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.delete("/v1/models/chat/estimate")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "engine_version")
