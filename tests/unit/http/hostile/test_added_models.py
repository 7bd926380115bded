"""A client that adds or edits models cannot use files, packages or code that are not meant for it."""

import json
import sys
from pathlib import Path

import httpx
import pytest

from registry.errors import Unfit
from registry.files.sources import locate
from registry.recipes.definition import Recipe
from registry.recipes.fields import PackageSource
from registry.state.database import State
from tests.unit.http.fakes import FakeGateway, application, recipe


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"path": "/etc"}},
        {"source": None},
        {"source": {"hub": "somebody/else"}},
        {"source.path": "/etc"},
        {"source.inside": "../../etc"},
        {"source.path.x": "/etc"},
    ],
)
async def test_an_edit_cannot_change_a_models_folder(client: httpx.AsyncClient, changes: dict[str, object]) -> None:
    answer = await client.patch("/v1/models/chat", json={"changes": changes})
    assert answer.status_code == 400, answer.text
    assert "cannot be edited" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("expected.load_seconds", 1e999), ("expected.tokens_per_second", 1e999), ("memory.kv_cache", 10**400), ("x", 1)],
)
async def test_an_infinite_figure_is_refused(client: httpx.AsyncClient, key: str, value: float) -> None:
    """With an infinite duration of a load, all answers with that value failed."""
    text = json.dumps({"changes": {key: value}})
    answer = await client.patch("/v1/models/chat", content=text, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "bad_recipe", "changes"), answer.text


@pytest.mark.parametrize("revision", ["../../../note.txt", "a/../../b", "/etc/passwd", "a\x00b", "main\n"])
async def test_a_revision_cannot_leave_the_cache(tmp_path: Path, revision: str) -> None:
    source = {"hub": "org/m", "revision": "main"}
    chat = recipe("chat", "chat").model_dump(mode="json") | {"source": source}
    with State(tmp_path / "data") as state:
        gateway = FakeGateway(tmp_path, [Recipe.model_validate(chat)], state=state)
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.patch("/v1/models/chat", json={"changes": {"source.revision": revision}})
    assert answer.status_code == 422, answer.text
    assert "'source.revision': write a branch, a tag or a commit" in answer.text


@pytest.mark.parametrize("name", ["antigravity.x", "torch.nn.quantized.dynamic.no", "idlelib.idle_test.no"])
async def test_a_package_that_is_named_is_not_imported(client: httpx.AsyncClient, name: str) -> None:
    """`find_spec` of a dotted name imports its parents, and so ran the code of any installed package."""
    before = set(sys.modules)
    answer = await client.post("/v1/models", json={"source": f"package:{name}", "dry_run": True})
    assert answer.json()["error"]["code"] == "source_not_found", answer.text
    parents = {name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)}
    assert not parents & (set(sys.modules) - before)


@pytest.mark.parametrize("inside", ["a" * 600, "a/" * 3000, "a\x00b"])
async def test_an_impossible_folder_name_is_refused(client: httpx.AsyncClient, inside: str) -> None:
    answer = await client.post("/v1/models", json={"source": f"package:models.starter/pack/{inside}", "dry_run": True})
    assert answer.status_code in (400, 422), answer.text


def test_a_package_below_another_one_is_found_by_its_folders() -> None:
    assert locate(PackageSource(package="models.starter", inside="pack")).name == "pack"
    assert locate(PackageSource(package="tests.unit.http", inside="hostile")).is_dir()
    with pytest.raises(Unfit):
        locate(PackageSource(package="models.starter.pack.no", inside="."))
