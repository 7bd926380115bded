"""Adapters by path are accepted only below the server's roots, and nothing outside is revealed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import pytest

from adapters.types import Base, CheckedAdapter
from registry.bounds import Bounds
from registry.errors import BadRequest, NotFound
from registry.recipes.definition import Recipe
from registry.records import RegisteredVersion
from runtime.config.settings import Settings
from runtime.http.admin.folders import check_folder
from tenants.caller import SCOPES, Caller, Scope
from tests.fakes.multipart import END, HEADERS
from tests.unit.http.admin.test_adapter_upload import BASE, CHAT, FILE, NAME
from tests.unit.http.admin.test_names import asking_as
from tests.unit.http.fakes import FakeGateway, application
from tests.unit.registry.makers import adapter, digest

CALLER = Caller("mine", scopes=SCOPES - {Scope.ADMIN})


@pytest.fixture
def places(tmp_path: Path) -> SimpleNamespace:
    """Folders `inside` and `outside`, each with an adapter and a link to the other."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for place in (inside, outside):
        (place / "adapter").mkdir(parents=True)
        (place / "file").write_text("x")
    (inside / "way-out").symlink_to(outside / "adapter")
    (inside / "loop").symlink_to(inside / "loop")
    (outside / "way-in").symlink_to(inside / "adapter")
    return SimpleNamespace(inside=inside, outside=outside)


def settings(places: SimpleNamespace, *roots: Path) -> Settings:
    data = places.inside.parent / "data"
    return Settings(recipes=(), data_dir=data, run_dir=data / "run", adapter_roots=roots or (places.inside,))


async def test_folders_below_a_root_may_be_named(places: SimpleNamespace) -> None:
    for path in (places.inside / "adapter", places.inside, places.outside / "way-in"):
        await check_folder(str(path), settings(places), "source.path", "adapters", CALLER)
        both = settings(places, places.outside.parent / "nowhere", places.inside)
        await check_folder(str(path), both, "source.path", "adapters", CALLER)


def refused(places: SimpleNamespace) -> list[str]:
    inside, outside = places.inside, places.outside
    found = [
        outside / "adapter", outside / "missing", outside, inside / "missing", inside / "file", inside / "way-out",
        inside / "loop", inside / ".." / "outside" / "adapter", f"{inside}-more", "/", "/etc", "/root", "/etc/passwd",
        "/etc/shadow", "/" + "a" * 5000, f"{inside}/a\0b", "/proc/self/root/etc",
    ]  # fmt: skip
    return [str(path) for path in found]


async def reported(path: str, by: Settings, what: Literal["adapters", "models"]) -> tuple[int, str, str | None, str]:
    with pytest.raises(NotFound) as error:
        await check_folder(path, by, "source.path", what, CALLER)
    return error.value.status, error.value.code, error.value.param, error.value.message.partition(" below ")[2]


async def test_all_other_folders_get_the_same_answer(places: SimpleNamespace) -> None:
    answers = {await reported(path, settings(places), "adapters") for path in refused(places)}
    assert len(answers) == 1
    assert "--adapter-roots" in answers.pop()[3]


def in_data(places: SimpleNamespace, real: Path) -> list[str]:
    """Return spellings of folders in the data directory and around it. real: its true path."""
    stored, top = real / "store" / ("a" * 64), real.parent
    (stored / "adapter_config.json").parent.mkdir(parents=True)
    (real / "merged" / "model").mkdir(parents=True)
    (places.inside / "to-stored").symlink_to(stored)
    (places.inside / "to-data").symlink_to(real)
    found = [
        stored, real / "store", real, top, real / "incoming", real / "merged",
        top / "inside" / ".." / "data" / "store" / stored.name, f"{top}//data/./store//{stored.name}/",
        places.inside / "to-stored", places.inside / "to-data" / "store" / stored.name,
        f"/proc/self/root{stored}", f"/proc/self/cwd/../../../../../../../..{stored}",
    ]  # fmt: skip
    return [str(path) for path in found]


@pytest.mark.parametrize("linked", [False, True])
async def test_the_data_directory_is_closed_however_it_is_spelled(places: SimpleNamespace, linked: bool) -> None:
    """Also if it is below a root, is a root itself, or is a link."""
    top, real = places.inside.parent, places.inside.parent / "data"
    if linked:
        real = places.inside / "elsewhere"
        real.mkdir()
        (top / "data").symlink_to(real)
    paths = in_data(places, real)
    for roots in ((places.inside,), (top,), (top / "data",), (real / "store",), (Path("/"),)):
        for path in paths:
            assert (await reported(path, settings(places, *roots), "adapters"))[1] == "source_not_found", path
            assert (await reported(path, settings(places, *roots), "models"))[1] == "source_not_found", path
    await check_folder(str(places.inside / "adapter"), settings(places, top), "source.path", "adapters", CALLER)
    for folder in ("mine+model", "theirs+model"):
        (real / "merged" / folder).mkdir()
    merged, own, theirs = (str(real / "merged" / name) for name in ("model", "mine+model", "theirs+model"))
    for path in (merged, own):  # the first is from a version without teams in the path
        await check_folder(path, settings(places), "source", "models", CALLER)
    await reported(theirs, settings(places, top), "models")
    await check_folder(theirs, settings(places), "source", "models", Caller("mine", scopes=frozenset({Scope.ADMIN})))
    await reported(merged, settings(places, top), "adapters")


async def test_a_relative_path_is_refused(places: SimpleNamespace) -> None:
    with pytest.raises(BadRequest, match="absolute"):
        await check_folder("adapter", settings(places), "lora_path", "adapters", CALLER)


async def test_a_key_needs_a_scope_to_name_a_folder(places: SimpleNamespace, tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [Recipe.model_validate(CHAT)], adapter_roots=(places.inside,))
    by_path = {"name": "tune", "base": "chat", "source": {"path": str(places.inside / "adapter")}}
    requested: dict[str, dict[str, Any]] = {
        "/v1/adapters": by_path,
        "/v1/adapters?dry_run=true": by_path,
        "/v1/load_lora_adapter": {"lora_name": "tune", "lora_path": by_path["source"]["path"]},
        "/v1/models": {"source": by_path["source"]["path"], "dry_run": True},
    }
    caller = Caller("search", "key00001", SCOPES - {Scope.PATHS})
    async with asking_as(gateway, caller) as client:
        for path, body in requested.items():
            answer = await client.post(path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (403, "insufficient_scope"), answer.text
            assert "'paths'" in error["message"]
            assert ("Upload" in error["message"]) == ("models" not in path)


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize(
    "source", ["path", "hub", "path as text", "hub as text", "address", "upload", "vllm", "vllm from a hub"]
)
@pytest.mark.parametrize(
    ("owners", "taken"),
    [((), True), (("search",), True), (("legal",), False), (("legal", "search"), True), (("legal shared",), True)],
)
async def test_content_that_another_team_owns_is_accepted_only_as_an_upload(
    owners: tuple[str, ...], taken: bool, source: str, dry: bool, places: SimpleNamespace, tmp_path: Path
) -> None:
    registered: list[str] = []
    have = [
        adapter("chat", f"its{number}", 7, 1, 9, team=owner.split()[0], shared="shared" in owner)
        for number, owner in enumerate(owners)
    ]

    async def validate(*_: Any, **__: Any) -> CheckedAdapter:
        return CheckedAdapter(digest(1), 8, 100)

    async def register(*_: Any, accept: Any, **__: Any) -> RegisteredVersion:
        accept(CheckedAdapter(digest(1), 8, 100))
        registered.append("it")
        made = adapter("chat", "tune", 1, team="search")
        return RegisteredVersion(made, made.current, True)

    service = SimpleNamespace(
        notes=SimpleNamespace(of=lambda digest: ()),
        validate=validate,
        register=register,
        list=lambda _=None: have,
        incoming=tmp_path / "incoming",
        bounds=Bounds(),
    )
    gateway = FakeGateway(tmp_path, [Recipe.model_validate(CHAT)], service=service, adapter_roots=(places.inside,))
    sources: dict[str, Any] = {
        "path": {"path": str(places.inside / "adapter")},
        "hub": {"hub": "org/name", "revision": "main"},
        "path as text": str(places.inside / "adapter"),
        "hub as text": "org/name@main",
        "address": "https://huggingface.co/org/name",
    }
    async with asking_as(gateway, Caller("search", "key00001", SCOPES)) as client:
        path = f"/v1/adapters?dry_run={str(dry).lower()}"
        if source.startswith("vllm"):  # a call that only registers
            text = sources["path as text" if source == "vllm" else "hub as text"]
            dry, named = False, {"lora_name": "tune", "lora_path": text}
            answer = await client.post("/v1/load_lora_adapter", json=named)
        elif source == "upload":
            answer = await client.post(path, content=NAME + BASE + FILE + END, headers=HEADERS)
        else:
            answer = await client.post(path, json={"name": "tune", "base": "chat", "source": sources[source]})
    if taken or source == "upload":
        assert answer.status_code == (200 if dry or source.startswith("vllm") else 201), answer.text
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "upload_needed"), answer.text
        assert "legal" not in answer.text
        assert not registered


@pytest.mark.parametrize("scopes", [SCOPES, SCOPES - {Scope.MODELS}], ids=["all", "no models"])
async def test_a_key_that_may_not_add_models_may_not_add_chat_templates(
    scopes: frozenset[Scope], places: SimpleNamespace, tmp_path: Path
) -> None:
    """A template is a program, as a model's own is."""
    seen: list[bool] = []

    async def registered(*_: Any, trusted: bool, **__: Any) -> Any:
        seen.append(trusted)
        raise BadRequest("it was seen", code="seen")

    service = SimpleNamespace(
        validate=registered,
        register=registered,
        list=lambda _=None: [],
        incoming=tmp_path / "incoming",
        bounds=Bounds(),
    )
    gateway = FakeGateway(tmp_path, [Recipe.model_validate(CHAT)], service=service, adapter_roots=(places.inside,))
    async with asking_as(gateway, Caller("search", "key00001", scopes)) as client:
        for path in ("/v1/adapters", "/v1/adapters?dry_run=true"):
            answer = await client.post(path, content=NAME + BASE + FILE + END, headers=HEADERS)
            assert answer.json()["error"]["code"] == "seen", answer.text
    assert seen == [Scope.MODELS in scopes] * 2


@pytest.mark.parametrize("text", ["", "https://huggingface.co/", "hf.co/?", "hf://", "/", "@main", "org/name@a b"])
async def test_a_text_that_is_no_source_is_refused(text: str, places: SimpleNamespace, tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [Recipe.model_validate(CHAT)], adapter_roots=(places.inside,))
    async with asking_as(gateway, Caller("search", "key00001", SCOPES)) as client:
        body = {"name": "tune", "base": "chat", "source": text}
        answers = [await client.post(f"/v1/adapters?dry_run={dry}", json=body) for dry in ("false", "true")]
        named = {"lora_name": "tune", "lora_path": text}
        answers.append(await client.post("/v1/load_lora_adapter", json=named))
    assert {answer.status_code for answer in answers} <= {400, 403, 404}, [answer.text for answer in answers]


async def test_both_calls_check_the_roots_first(places: SimpleNamespace, tmp_path: Path) -> None:
    read: list[str] = []

    async def look(*arguments: Any, **_: Any) -> CheckedAdapter:
        base, source = (a for a in arguments if not isinstance(a, str))
        assert isinstance(base, Base)
        read.append(source.path)
        raise BadRequest("it was read", code="read")

    service = SimpleNamespace(validate=look, register=look, list=list)
    gateway = FakeGateway(tmp_path, [Recipe.model_validate(CHAT)], service=service, adapter_roots=(places.inside,))
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

        async def codes(path: str) -> set[str]:
            by_path = {"name": "tune", "base": "chat", "source": {"path": path}}
            answers = [
                await client.post("/v1/adapters", json=by_path),
                await client.post("/v1/adapters?dry_run=true", json=by_path),
                await client.post("/v1/load_lora_adapter", json={"lora_name": "tune", "lora_path": path}),
            ]
            return {answer.json()["error"]["code"] for answer in answers}

        for path in refused(places):
            assert await codes(path) == {"source_not_found"}
        assert read == []
        assert await codes(str(places.inside / "adapter")) == {"read"}
