"""The use case of adding a model, over the real manager of models but without a server."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.checks.checker import FileChecker
from launch.proposal.code import check_flags
from launch.request import ModelRequest
from registry.errors import BadRequest, Conflict, DoesNotFit, Forbidden, Unfit
from registry.files.sources import locate
from registry.recipes.definition import Recipe
from registry.recipes.fields import PackageSource, origin
from registry.records import Adapter, RouterKey
from runtime.config.device import Device
from runtime.gateway.launch.additions import Additions, advice
from runtime.gateway.names import Names
from tests.unit.registry.makers import adapter, recipe
from tests.unit.residency.scripted import World

RERANK = ModelRequest("package:models.starter/pack/starter-rerank")
MIB = 2**20


def additions(
    folder: Path, budget: int, model_set: Any = None, recipes: Sequence[Recipe] = (), adapters: Sequence[Adapter] = ()
) -> tuple[World, Additions]:
    world = World(folder, budget=budget)
    model_set = model_set or SimpleNamespace(recipe=lambda _: None, is_leaving=lambda _: False, recipes=lambda: recipes)
    model_set.writing = asyncio.Lock()
    table = SimpleNamespace(all=lambda: adapters, ever=lambda: ())
    routers = SimpleNamespace(all=lambda: [SimpleNamespace(key=RouterKey("auto"))])
    models = SimpleNamespace(aliases=lambda: {"own": "base"})
    state: Any = SimpleNamespace(adapters=table, models=models, routers=routers)
    names = Names([one for one in recipes if one.version == 1], state)
    names.provider_names = frozenset({"haiku"})
    return world, Additions(
        model_set, names, world.manager, Device("cpu", "cpu", "cpu", budget, budget), False, FileChecker()
    )


async def test_a_model_that_does_not_fit_is_refused_with_the_missing_bytes(tmp_path: Path) -> None:
    _, adding = additions(tmp_path, 200 * MIB)
    found = await adding.preview(RERANK)
    assert found.plan.verdict == "impossible"
    assert found.short_by == found.proposal.estimate.total - 200 * MIB > 0
    assert f"It lacks {found.short_by:,} bytes" in advice(found)
    with pytest.raises(DoesNotFit, match="It lacks"):
        [step async for step in adding.add(RERANK)]


@pytest.mark.parametrize("expected", [{"id": "auto"}, {"overrides": {"aliases": ["auto"]}}], ids=["id", "alias"])
async def test_a_model_with_the_name_of_a_router_is_refused(tmp_path: Path, expected: dict[str, Any]) -> None:
    _, adding = additions(tmp_path, 2048 * MIB)
    with pytest.raises(Conflict, match=r"'auto' is a router's name. Choose another name for the model"):
        [step async for step in adding.add(replace(RERANK, **expected))]


@pytest.mark.parametrize("expected", ["id", "alias"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("legal", "an adapter's name"),
        ("base:legal", "an adapter's name"),
        ("team/theirs", "an adapter's name"),
        ("tall", "a model's alias"),
        ("own", "a model's alias"),
        ("soon", "a model's alias"),
        ("haiku", "a provider's model"),
    ],
)
async def test_a_model_with_the_name_of_another_is_refused(
    tmp_path: Path, name: str, words: str, expected: str
) -> None:
    """Users of the name would get other weights."""
    recipes = [recipe("base", aliases=("tall",)), recipe("base", version=2, aliases=("tall", "soon"))]
    adapters = [adapter("base", "legal"), adapter("base", "theirs", team="team")]
    _, adding = additions(tmp_path, 2048 * MIB, None, recipes, adapters)
    more: dict[str, Any] = {"id": name} if expected == "id" else {"overrides": {"aliases": [name]}}
    with pytest.raises(Conflict, match=words) as refused:
        await adding.preview(replace(RERANK, **more))
    assert refused.value.code == "name_in_use"


async def test_another_model_under_the_id_of_one_is_refused_in_a_preview_too(tmp_path: Path) -> None:
    _, adding = additions(tmp_path, 2048 * MIB)
    taken = (await adding.preview(RERANK)).recipe
    model_set = SimpleNamespace(recipe=lambda _: taken, is_leaving=lambda _: False, recipes=lambda: [taken])
    _, adding = additions(tmp_path, 2048 * MIB, model_set)
    assert (await adding.preview(RERANK)).recipe == taken, "the same model again changes nothing"
    with pytest.raises(Conflict, match=f"There is a model '{taken.id}' already") as refused:
        await adding.preview(replace(RERANK, overrides={"description": "another"}))
    assert (refused.value.code, refused.value.param) == ("name_in_use", "id")


async def test_another_model_under_the_id_of_a_removed_base_does_not_get_its_adapters(tmp_path: Path) -> None:
    """They were trained on other weights. The same model gets them back."""
    request = replace(RERANK, id="base")
    own = origin((await additions(tmp_path, 2048 * MIB)[1].preview(request)).recipe.source)
    for base_origin, accepted in ((own, True), (None, True), ("hub acme/other", False)):
        one = adapter("base", "legal")
        versions = (replace(one.current, base_origin=base_origin),)
        _, adding = additions(tmp_path, 2048 * MIB, None, [], [replace(one, versions=versions, current=versions[0])])
        if accepted:
            assert (await adding.preview(request)).recipe.id == "base"
        else:
            with pytest.raises(Conflict, match=r"adapters \(legal\) of a model that was named 'base'") as refused:
                await adding.preview(request)
            assert (refused.value.code, refused.value.param) == ("name_in_use", "id")


async def test_weights_that_are_larger_than_the_memory_are_refused_with_advice(tmp_path: Path) -> None:
    _, adding = additions(tmp_path, MIB)
    assert "a smaller model, or a quantized one" in advice(await adding.preview(RERANK))


async def test_the_plan_of_a_model_that_fits_names_its_victims(tmp_path: Path) -> None:
    world, adding = additions(tmp_path, 2048 * MIB)
    assert advice(await adding.preview(RERANK)) == "It fits."
    world.pool.free, world.pool.addable = 0, 1
    assert advice(await adding.preview(RERANK)) == "It fits, in a slot that is added for it."
    world.pool.free, world.pool.addable = 3, 0
    world.manager.get("a").needed = 1900 * MIB
    await world.ask("a")
    world.manager.get("a").bytes = 1900 * MIB
    found = await adding.preview(RERANK)
    assert advice(found) == "It fits once a has left, to free device memory (--device-memory)."
    assert world.witness.events == ["loaded a"], "a preview changes nothing"
    await world.manager.close()
    await world.pool.close()


@pytest.mark.parametrize("overrides", [{"description": "half \ud800"}, {"engine.flags.seed": 10**200}])
async def test_a_recipe_that_could_not_be_read_back_is_refused(tmp_path: Path, overrides: dict[str, object]) -> None:
    _, adding = additions(tmp_path, 2048 * MIB)
    with pytest.raises(Unfit) as refused:
        await adding.preview(replace(RERANK, overrides=overrides))
    assert refused.value.code == "bad_recipe"


async def test_a_missing_version_of_the_engine_is_refused(tmp_path: Path) -> None:
    """The proposal used to say that it fits."""
    _, adding = additions(tmp_path, 2048 * MIB)
    with pytest.raises(Unfit, match=r"wants sentence-transformers <0\.1") as refused:
        await adding.preview(replace(RERANK, overrides={"engine.versions": "<0.1"}))
    assert refused.value.code == "engine_version"


async def test_a_folder_whose_weights_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """It used to be added, and then each request failed."""
    _, adding = additions(tmp_path, 2048 * MIB)
    folder = tmp_path / "model"
    shutil.copytree(locate(PackageSource(package="models.starter", inside="pack/starter-rerank")), folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002.safetensors"}}')
    with pytest.raises(Unfit, match=r"lacks model-00002\.safetensors") as refused:
        await adding.preview(ModelRequest(str(folder)))
    assert refused.value.code == "bad_weights"


@pytest.mark.real
async def test_files_that_would_fail_at_the_first_request_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proposal used to say that they fit. Files that pass are not checked again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, adding = additions(tmp_path, 2048 * MIB)
    folder = tmp_path / "model"
    shutil.copytree(locate(PackageSource(package="models.starter", inside="pack/starter-speech")), folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(Unfit, match=r"tokenizer\.json is not JSON") as refused:
        await adding.preview(ModelRequest(str(folder)))
    assert (refused.value.code, refused.value.param) == ("bad_files", "source")
    assert list((tmp_path / "cache").rglob("checks/*")) == []
    await adding.preview(RERANK)
    assert len(list((tmp_path / "cache").rglob("checks/*"))) == 1


async def test_a_folder_that_the_server_may_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to be a 500."""
    _, adding = additions(tmp_path, 2048 * MIB)

    def refused(_: Path) -> None:
        raise PermissionError(13, "Permission denied", "/models/mine/config.json")

    monkeypatch.setattr("runtime.gateway.launch.additions.list_folder", refused)
    with pytest.raises(
        Unfit, match=r"/models/mine/config.json cannot be read or created: Permission denied"
    ) as reported:
        await adding.preview(RERANK)
    assert (reported.value.code, reported.value.param) == ("source_not_found", "source")


async def test_a_model_whose_name_is_being_removed_waits_and_says_so(tmp_path: Path) -> None:
    gone = asyncio.Event()

    def roster_recipe(_: str) -> Any:
        return SimpleNamespace(source=PackageSource(package="models.starter", inside="pack/starter-rerank"))

    model_set = SimpleNamespace(
        is_leaving=lambda _: not gone.is_set(), wait_until_removed=lambda _: gone.wait(), recipe=roster_recipe
    )
    world, adding = additions(tmp_path, 2048 * MIB, model_set)
    expected = replace(RERANK, id="a")
    found = await adding.preview(expected)
    assert found.is_leaving
    assert "being removed" in advice(found)
    steps = adding.add(expected)
    assert [(await anext(steps)).phase for _ in range(2)] == ["looking", "waiting"]
    incoming = asyncio.ensure_future(anext(steps))
    await asyncio.sleep(0)
    assert not incoming.done()
    gone.set()
    assert (await incoming).phase == "added"
    await steps.aclose()
    await world.pool.close()


@pytest.mark.parametrize(
    "requested",
    [
        {"engine.flags.trust_remote_code": True},
        {"engine.flags": {"tool-parser-plugin": "/tmp/x.py"}},
        {"engine": {"name": "vllm", "flags": {"load_format": "pt"}}},
        {"engine.flags.logits_processors": ["x:y"]},
        {"engine.flags.structured_outputs_config": {"reasoning_parser_plugin": "/tmp/x.py"}},
        {"engine.flags.structured_outputs_config.reasoning_parser_plugin": "/tmp/x.py"},
        {"engine.flags.attn_implementation": "somebody/kernel"},
        {"engine.flags.generation_config": "/etc"},
        {"engine.flags.trust_remote_code": True, "engine.flags": {"seed": 1}, "engine": {"name": "vllm"}},
    ],
)
def test_flags_that_name_files_or_code_are_not_for_clients(requested: dict[str, object]) -> None:
    with pytest.raises(Forbidden) as refused:
        check_flags(requested, trusted=False)
    assert refused.value.code == "flag_not_allowed"
    check_flags(requested, trusted=True)


def test_a_flag_with_its_own_key_gets_that_key() -> None:
    with pytest.raises(BadRequest, match="write it as context_length") as refused:
        check_flags({"engine.flags.max-model-len": 4096}, trusted=False)
    assert refused.value.param == "engine.flags.max-model-len"


def test_harmless_flags_are_accepted() -> None:
    check_flags(
        {
            "engine.flags.tool_call_parser": "hermes",
            "engine.flags.kv-cache-dtype": "fp8",
            "engine.flags.attn-implementation": "sdpa",
            "engine.flags.structured_outputs_config": None,
            "dtype": "auto",
        },
        trusted=False,
    )
