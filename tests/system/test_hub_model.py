"""Models whose files are missing when the server starts, and are looked for at the first request for the model."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.traffic import ask
from tests.system.serving import PACK, Server
from tests.unit.adapters.fake_hub import FakeHub, serve

pytestmark = pytest.mark.real
FILES = PACK / "starter-speech"
RECIPE = """
id: {id}
version: 1
task: transcribe
source: {source}
engine: {{name: faster-whisper}}
"""


class Rig(NamedTuple):
    server: Server
    hub: FakeHub
    folder: Path
    commit: str


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Yield a hub that fails while the server starts, and a recipe whose folder is missing."""
    folder = tmp_path_factory.mktemp("late")
    recipes = folder / "recipes"
    recipes.mkdir()
    with serve() as hub:
        commit = hub.push("team/speech", FILES)
        sources = {"from-hub": f"{{hub: team/speech, revision: {commit}}}", "from-folder": "{path: ../late}"}
        for name, source in sources.items():
            (recipes / f"{name}.yaml").write_text(RECIPE.format(id=name, source=source))
        hub.fail_with = 503
        with Server(folder / "data", [recipes], "--slots", "2", env=hub.environment(folder / "hf")) as server:
            yield Rig(server.wait_ready(), hub, folder, commit)


def test_a_hub_model_is_fetched_on_first_use(rig: Rig) -> None:
    """It is fetched at its commit. The server's start needs no hub."""
    server = rig.server
    refused = ask(server.http, "from-hub")
    assert refused.status_code == 503, refused.text
    assert "did not deliver" in refused.text
    assert server.model("from-hub")["state"] == "failed"
    rig.hub.fail_with = None
    assert server.http.post("/v1/models/from-hub/load").status_code == 200, server.tail()
    answer = ask(server.http, "from-hub")
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-roundhouse-model"] == f"from-hub@{rig.commit}"


def test_a_folder_that_was_missing_is_looked_at_again(rig: Rig) -> None:
    server = rig.server
    refused = ask(server.http, "from-folder")
    assert refused.status_code == 503, refused.text
    assert "no folder" in refused.text
    assert server.model("from-folder")["problem"]
    shutil.copytree(FILES, rig.folder / "late")
    assert server.http.post("/v1/models/from-folder/load").status_code == 200, server.tail()
    assert ask(server.http, "from-folder").status_code == 200
    assert server.model("from-folder")["problem"] is None
