"""Providers added over HTTP are served at once and after a restart, and nothing reveals their keys."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from registry.errors import Unavailable
from registry.recipes.provider import Provider
from routing.providers.connection import key_of
from runtime.gateway.providers.index import ProviderIndex
from runtime.gateway.providers.store import ProviderStore
from tenants.caller import Caller
from tests.unit.http.admin.test_names import asking_as
from tests.unit.http.fakes import FakeGateway, recipe

KEY = "sk-0123456789abcdef"
CALLER = Caller("ops", "key00001")


def definition(**more: Any) -> dict[str, Any]:
    models = [{"name": "large", "aliases": ["big"]}]
    return {"protocol": "openai", "base_url": "https://api.example.com/v1", "models": models, **more}


async def test_a_provider_is_added_changed_read_again_and_removed(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text(f"{KEY}\n")
    gateway = FakeGateway(tmp_path, [recipe("small", "chat")])
    async with asking_as(gateway, CALLER) as client:
        put = await client.put("/v1/providers/there", json=definition(key_file=str(secret)))
        assert (put.status_code, put.json()["version"], put.headers["location"]) == (201, 1, "/v1/providers/there")
        names = {model["id"] for model in (await client.get("/v1/models")).json()["data"]}
        assert "there/large" in names
        assert key_of(gateway.providers.upstreams["there"].provider) == KEY
        visible = await client.get("/v1/providers/there")
        assert visible.json()["definition"]["key_file"] == str(secret)
        listed = (await client.get("/v1/providers")).json()["data"]
        assert [(one["id"], one["key_is_set"]) for one in listed] == [("there", True)]
        changed = await client.put("/v1/providers/there", json=definition(connections=7))
        assert (changed.status_code, changed.json()["version"]) == (200, 2)
        files = list((gateway.settings.data_dir / "providers").iterdir())
        assert [file.name for file in files] == ["there.yaml"]
        assert KEY not in put.text + visible.text + files[0].read_text()
        assert files[0].stat().st_mode & 0o077 == 0

        index = ProviderIndex(gateway.names, (), lambda *_: None)
        (gateway.settings.data_dir / "providers" / ".half.tmp").touch()
        again = ProviderStore(gateway.settings.data_dir / "providers", gateway.names, index)
        again.open()
        assert index.upstreams["there"].provider.connections == 7

        gone = await client.delete("/v1/providers/there")
        assert (gone.status_code, gone.json()["deleted"]) == (200, True)
        assert (await client.get("/v1/providers/there")).json()["error"]["code"] == "provider_not_found"
        assert (await client.delete("/v1/providers/there")).status_code == 404
        assert not list((gateway.settings.data_dir / "providers").iterdir())


def test_a_start_without_the_folder_of_added_providers_is_refused(tmp_path: Path) -> None:
    """Their names would become unknown, without a word."""
    gateway = FakeGateway(tmp_path)
    (tmp_path / "folder").write_text("unreadable")
    with pytest.raises(Unavailable, match="folder cannot be read"):
        ProviderStore(tmp_path / "folder", gateway.names, ProviderIndex(gateway.names, (), lambda *_: None)).open()


async def test_a_provider_whose_file_cannot_be_deleted_stays(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [recipe("small", "chat")])
    file = gateway.settings.data_dir / "providers" / "there.yaml"
    async with asking_as(gateway, CALLER) as client:
        assert (await client.put("/v1/providers/there", json=definition())).status_code == 201
        file.unlink()
        file.mkdir()  # stands for a disk that is mounted for reading only
        refused = await client.delete("/v1/providers/there")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "disk_full")
        assert (await client.get("/v1/providers/there")).status_code == 200


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("there", {**definition(), "base_url": "ftp://x"}, 422, "bad_recipe"),
        ("there", {**definition(), "base_url": "https://a..b/v1"}, 422, "bad_recipe"),
        ("there", {**definition(), "base_url": f"https://{'a' * 64}.example/v1"}, 422, "bad_recipe"),
        ("there", {**definition(), "base_url": "https://xn--/v1"}, 422, "bad_recipe"),
        ("there", definition(key_env="A", key_file="/b"), 422, "bad_recipe"),
        ("there", definition(api_key=KEY), 422, "bad_recipe"),
        ("there", {}, 422, "bad_recipe"),
        ("there", definition(connections=2**70), 422, "bad_recipe"),
        ("-there", definition(), 422, "bad_recipe"),
        ("there", definition(models=[{"name": "x", "aliases": ["small"]}]), 409, "name_in_use"),
        ("there", definition(models=[{"name": "x", "aliases": ["taken"]}]), 409, "name_in_use"),
        ("file", definition(), 409, "conflict"),
    ],
)
async def test_a_refused_definition_changes_nothing(
    name: str, body: dict[str, Any], status: int, code: str, tmp_path: Path
) -> None:
    models = [{"name": "m", "aliases": ["taken"]}]
    given = Provider.model_validate(definition(id="file", version=1, models=models))
    gateway = FakeGateway(tmp_path, [recipe("small", "chat")], providers=[given])
    async with asking_as(gateway, CALLER) as client:
        answer = await client.put(f"/v1/providers/{name}", content=json.dumps(body))
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
        assert KEY not in answer.text
        assert (await client.get(f"/v1/providers/{name}")).status_code == (200 if name == "file" else 404)
        assert (await client.delete("/v1/providers/file")).status_code == 409
    assert not (gateway.settings.data_dir / "providers").exists()
    assert list(gateway.providers.upstreams) == ["file"]


async def test_a_broken_file_leaves_out_only_its_provider(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [recipe("small", "chat")])
    async with asking_as(gateway, CALLER) as client:
        for name in ("one", "two"):
            body = definition(models=[{"name": "m"}])
            assert (await client.put(f"/v1/providers/{name}", json=body)).status_code == 201
    folder = gateway.settings.data_dir / "providers"
    (folder / "one.yaml").write_text("kind: provider\nid: [")
    index = ProviderIndex(gateway.names, (), lambda *_: None)
    ProviderStore(folder, gateway.names, index).open()
    assert list(index.upstreams) == ["two"]


async def test_metrics_have_only_the_providers_that_are_served(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [recipe("small", "chat")])
    async with asking_as(gateway, CALLER) as client:
        for name in ("one", "two"):
            body = definition(models=[{"name": "m"}])
            assert (await client.put(f"/v1/providers/{name}", json=body)).status_code == 201
        for present in (["one", "two"], ["two"]):
            text = (await client.get("/metrics")).text
            for series in ("provider_running", "provider_breaker"):
                assert sorted(set(re.findall(rf'roundhouse_{series}\{{.*provider="(\w+)"', text))) == present
            await client.delete("/v1/providers/one")


@pytest.mark.parametrize(
    "key",
    [
        {"key_env": "ROUNDHOUSE_PEPPER"}, {"key_env": "ROUNDHOUSE_DATABASE"}, {"key_file": "/proc/self/environ"},
        {"key_file": "pepper"}, {"key_file": "../data/pepper"}, {"key_file": "fleet/key"},
    ],
)  # fmt: skip
async def test_no_secret_of_the_server_itself_becomes_a_providers_key(tmp_path: Path, key: dict[str, str]) -> None:
    """A request with the scope `admin` could have it sent to any host."""
    gateway = FakeGateway(tmp_path, [recipe("small", "chat")])
    if "key_file" in key:
        key = {"key_file": str(gateway.settings.data_dir / key["key_file"])}
    async with asking_as(gateway, CALLER) as client:
        refused = await client.put("/v1/providers/there", json=definition(**key))
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_recipe"), refused.text
        assert "may hold secrets of this server" in refused.text
        assert (await client.get("/v1/providers/there")).status_code == 404


async def test_a_document_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [recipe("small", "chat")])
    async with asking_as(gateway, CALLER) as client:
        body = json.dumps(definition(description="deep")).replace('"deep"', "[" * 500 + "]" * 500)
        refused = await client.put("/v1/providers/there", content=body, headers={"Content-Type": "application/json"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_recipe"), refused.text


async def test_a_key_file_of_no_valid_name_is_reported_as_missing(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [recipe("small", "chat")])
    async with asking_as(gateway, CALLER) as client:
        assert (await client.put("/v1/providers/there", json=definition(key_file="a\x00b"))).status_code == 201
        assert not (await client.get("/v1/providers")).json()["data"][0]["key_is_set"]
