"""The server with the CUDA build on fake GPUs: its plans for the GPU recipes, and how a load fails there."""

from pathlib import Path

import pytest
import yaml

from models.estimate import estimate
from registry.recipes.loading import load_recipes
from tests.eventually import eventually
from tests.rehearsal.card import H100, H200, LLAMA, LLAMA_70B, QWEN_32B, ROOT, bert, calls, chat_model, variables
from tests.system.serving import PACK, Server

pytestmark = pytest.mark.real
MAKE = {
    "llama-8b": lambda folder: chat_model(folder, LLAMA),
    "llama-70b": lambda folder: chat_model(folder, LLAMA_70B),
    "qwen-32b": lambda folder: chat_model(folder, QWEN_32B),
    "bge-embed": lambda folder: bert(folder, 24, 30522, 512),
    "bge-rerank": lambda folder: bert(folder, 24, 250002, 8194),
}


def local(recipes: str, folder: Path) -> dict[str, tuple[Path, Path]]:
    """Write GPU recipes with local models. Return each recipe and model by id. Whisper is the starter's."""
    found = {}
    (folder / "recipes").mkdir()
    for file in (ROOT / "recipes" / recipes).glob("*.yaml"):
        model = folder / file.stem if file.stem in MAKE else PACK / "starter-speech"
        if file.stem in MAKE:
            MAKE[file.stem](model)
        data = yaml.safe_load(file.read_text())
        data |= {"source": {"path": str(model)}, "adapters": []}
        data["residency"] = {key: value for key, value in data["residency"].items() if key not in ("preload", "pin")}
        (folder / "recipes" / file.name).write_text(yaml.safe_dump(data))
        found[data["id"]] = folder / "recipes" / file.name, model
    return found


@pytest.mark.parametrize(("recipes", "card"), [("single-gpu-80gb", H100), ("h200", H200)])
def test_plans_match_the_files_and_a_failed_load_says_why(
    cuda_build: Path, driver: Path, tmp_path: Path, recipes: str, card: int
) -> None:
    models = local(recipes, tmp_path)
    room = "--host-memory", "400GiB"
    given = {"device": "cuda", "python": str(cuda_build), "env": variables(driver, tmp_path, card)}
    server = Server(tmp_path / "a" / "data", [tmp_path / "recipes"], *room, **given)  # type: ignore[arg-type]
    try:
        server.wait_ready()
        status = server.http.get("/v1/status").json()
        assert status["device"]["total_bytes"] == card
        for model, (file, weights) in models.items():
            plan = server.http.post(f"/v1/models/{model}/plan").json()
            (recipe,) = load_recipes(file)
            assert (plan["verdict"], plan["victims"]) == ("load", []), plan
            assert plan["bytes_needed"] == estimate(recipe, weights, "cuda").total
        for model in models:
            refused = server.http.post(f"/v1/models/{model}/load")
            assert (refused.status_code, refused.json()["error"]["code"]) == (500, "engine_failed"), refused.text
            assert "CUDA" in refused.json()["error"]["message"]
        assert status["pid"] not in {process for call, process in calls(tmp_path) if call == "cuInit"}
        assert server.stop() == 0
    finally:
        server.close()


def uuids(numbers: range) -> str:
    return ",".join(f"GPU-00000000-0000-0000-0000-{number + 1:012}" for number in numbers)


def test_on_eight_gpus_each_engine_only_sees_its_own(cuda_build: Path, driver: Path, tmp_path: Path) -> None:
    """The driver logs which GPUs CUDA would see at each `cuInit`, where every load fails."""
    models = local("node-8x80gb", tmp_path)
    room = "--host-memory", "400GiB"
    given = {"device": "cuda", "python": str(cuda_build), "env": variables(driver, tmp_path, H100, cards=8)}
    server = Server(tmp_path / "a" / "data", [tmp_path / "recipes"], *room, **given)  # type: ignore[arg-type]
    try:
        server.wait_ready()
        status = server.http.get("/v1/status").json()
        assert [device["total_bytes"] for device in status["devices"]] == [H100] * 8
        assert ",".join(device["uuid"] for device in status["devices"]) == uuids(range(8))
        for model, (file, weights) in models.items():
            plan = server.http.post(f"/v1/models/{model}/plan").json()
            (recipe,) = load_recipes(file)
            spread = recipe.parallel.devices
            assert (plan["verdict"], plan["victims"]) == ("load", []), plan
            assert plan["bytes_needed"] == estimate(recipe, weights, "cuda").on_each
            assert [room["device"] for room in plan["devices"]] == [f"cuda:{number}" for number in range(spread)]
            others = [[room["device"] for room in one["devices"]] for one in plan["replicas"][1:]]
            again = [f"cuda:{number}" for number in range(spread, 2 * spread)]
            assert others == [again] * (recipe.replicas.least - 1)
        seen_before: set[tuple[str, int]] = set()
        groups: set[str] = set()

        def look() -> set[tuple[str, int]]:
            return {call for call in calls(tmp_path) if call[0].startswith("sees ")}

        def wait_for_more(before: set[tuple[str, int]], least: int) -> set[tuple[str, int]]:
            eventually(lambda: len(look() - before) >= least, server.tail)
            return look()

        for model, (file, _) in models.items():
            refused = server.http.post(f"/v1/models/{model}/load")
            assert (refused.status_code, refused.json()["error"]["code"]) == (500, "engine_failed"), refused.text
            (recipe,) = load_recipes(file)
            spread = recipe.parallel.devices
            least = spread * recipe.replicas.least  # other replicas reach their GPUs after the answer
            seen = wait_for_more(seen_before, least)
            own = {f"sees {uuids(range(start, start + spread))}" for start in range(0, 8, spread)}
            groups |= own  # replicas of an earlier model may be late
            assert {call for call, _ in seen - seen_before} <= groups
            assert own & {call for call, _ in seen}, "its workers get as far as their GPUs"
            seen_before = seen
        assert status["pid"] not in {process for _, process in seen_before}
        assert server.stop() == 0
    finally:
        server.close()
