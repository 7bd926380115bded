"""A model whose files lie on a hub is fetched when it is first asked for, at its commit, not in the server's start."""

from pathlib import Path

import pytest

from registry.files.sources import locate
from registry.recipes.fields import PackageSource
from tests.faults.traffic import ask
from tests.system.serving import Server
from tests.unit.adapters.fake_hub import serve

RECIPE = """
id: from-hub
version: 1
task: transcribe
source: {{hub: team/speech, revision: {commit}}}
engine: {{name: faster-whisper}}
"""


@pytest.mark.real
def test_a_hub_model_is_fetched_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as hub:
        commit = hub.push("team/speech", locate(PackageSource(package="models.starter", inside="pack/starter-speech")))
        recipe = tmp_path / "hub.yaml"
        recipe.write_text(RECIPE.format(commit=commit))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        hub.fail_with = 503
        server = Server(tmp_path / "data", [recipe], "--slots", "1")
        try:
            server.wait_ready()  # whether the hub answers or not
            refused = ask(server.http, "from-hub")
            assert refused.status_code == 503, refused.text
            assert "did not deliver" in refused.text
            assert server.model("from-hub")["state"] == "failed"
            hub.fail_with = None
            assert server.http.post("/v1/models/from-hub/load").status_code == 200, server.tail()
            answer = ask(server.http, "from-hub")
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-roundhouse-model"] == f"from-hub@{commit}"
        finally:
            server.close()
