"""Models that Ollama has pulled to this machine.

Below the folder of OLLAMA_MODELS, `~/.ollama/models` or Ollama's service:

    manifests/HOST/NAMESPACE/NAME/TAG   JSON with a model's layers: the kind and digest of each
    blobs/sha256-…                      a layer: a GGUF file, settings of sampling as JSON, a system message, …
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.cli.failures import RefusedError

PREFIX = "ollama:"
SERVICE = Path("/usr/share/ollama/.ollama/models")
"""The folder of Ollama's service for systemd."""
HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
"""The parts that a name may leave out."""
KIND = "application/vnd.ollama.image."
SAMPLING = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repeat_penalty": "repetition_penalty", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}  # fmt: skip
"""Parameters of Ollama, and the same in a model's generation config."""
UNSET = ("num_predict", "seed", "mirostat", "mirostat_eta", "mirostat_tau", "repeat_last_n", "tfs_z", "typical_p")
"""Parameters of Ollama that change answers and have no place in a recipe."""
MARK = re.compile(r"<[^<>]+>|\[/?[A-Z_]+\]")
"""Matches a stop sequence that is one of the model's own tokens, such as `<|eot_id|>`. Those end an answer anyway."""
LOST = {
    "adapter": "Its LoRA adapter is left out: register the folder of peft that it was made from as an adapter.",
    "projector": "It will read no images: its part for images is in a file of its own, which is left out.",
    "messages": "Its example messages are left out: send them in each request.",
}
"""Layers that stay behind, and what to do instead."""


@dataclass(frozen=True, slots=True)
class PulledModel:
    """A model that Ollama has pulled."""

    name: str
    """The name in requests of Ollama's clients, without `:latest`."""
    file: Path
    """The GGUF, which has no ending."""
    overrides: Mapping[str, Any]
    """Values of the recipe, from the parameters of its Modelfile."""
    notes: tuple[str, ...]
    """Settings and parts that stay behind."""

    def link(self, folder: Path) -> Path:
        """Link the file into a folder of its own below `folder`, with the ending of a GGUF. Returns the link."""
        name = self.name.replace("/", "-").replace(":", "-")
        link = folder / name / f"{name}.gguf"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(self.file)
        return link


def find(name: str) -> PulledModel:
    """Find a model by its name in Ollama. Raises RefusedError."""
    folder = _folder()
    try:
        layers = _layers(folder, name)
        if "model" not in layers:
            raise RefusedError(f"{name} has no GGUF file in {folder}: add the original from a hub.")
        given = _object(layers["params"]) if "params" in layers else {}
        system = layers["system"].read_text(encoding="utf-8").strip() if "system" in layers else ""
    except OSError as error:
        raise RefusedError(f"{error.filename} cannot be read: {error.strerror}. Set OLLAMA_MODELS to a copy.") from None
    except ValueError as error:
        raise RefusedError(f"{folder} is damaged at {name}: {error}. Pull the model again.") from None
    overrides: dict[str, Any] = {}
    if sampling := {SAMPLING[key]: value for key, value in given.items() if key in SAMPLING}:
        overrides["engine.flags.override_generation_config"] = sampling
    if "num_ctx" in given:
        overrides["context_length"] = given["num_ctx"]
    if system:
        overrides["system"] = system
    if stop := [text for text in _texts(given.get("stop")) if not MARK.fullmatch(text)]:
        overrides["stop"] = stop
    notes = [LOST[kind] for kind in LOST if kind in layers]
    if unset := [key for key in UNSET if key in given]:
        notes.append(
            f"Left out of its parameters: {', '.join(unset)}. Requests can have num_predict and seed of their own."
        )
    return PulledModel(_short(name), layers["model"].resolve(), overrides, tuple(notes))


def _folder() -> Path:
    if chosen := os.environ.get("OLLAMA_MODELS"):
        return Path(chosen).expanduser()
    own = Path("~/.ollama/models").expanduser()
    return SERVICE if not own.is_dir() and SERVICE.parent.parent.is_dir() else own


def _layers(folder: Path, name: str) -> dict[str, Path]:
    """Return the files of a model's layers by kind, such as `model` or `params`."""
    parts, tag = _parts(name)
    manifest = folder.joinpath("manifests", *parts, tag)
    if "" in parts or ".." in parts or len(parts) != 3 or not manifest.is_file():
        known = ", ".join(_names(folder)) or "no models"
        raise RefusedError(f"Ollama has not pulled {name} to {folder}, which has {known}.", code="source_not_found")
    layers = _object(manifest).get("layers") or ()  # null for a model that runs in Ollama's cloud
    blobs = folder / "blobs"
    try:
        return {layer["mediaType"].removeprefix(KIND): blobs / layer["digest"].replace(":", "-") for layer in layers}
    except (KeyError, TypeError, AttributeError):
        raise ValueError("its manifest has no layers") from None


def _object(file: Path) -> dict[str, Any]:
    """Read a JSON object. Raises OSError, ValueError."""
    value = json.loads(file.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"{file.name} is no object")
    return value


def _texts(value: object) -> list[str]:
    """Return a text, or a list of texts, as a list."""
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str) and text]


def _parts(name: str) -> tuple[list[str], str]:
    """Return host, namespace and name, and the tag."""
    path, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # the colon of a host's port
        path, tag = name, TAG
    parts = path.split("/")
    return [*(HOST, NAMESPACE)[: max(0, 3 - len(parts))], *parts], tag


def _short(name: str) -> str:
    """Return a model's name without the parts that it may leave out."""
    return name.removesuffix(f":{TAG}").removeprefix(f"{HOST}/").removeprefix(f"{NAMESPACE}/")


def _names(folder: Path) -> list[str]:
    manifests = folder / "manifests"
    found = (file.relative_to(manifests).parts for file in manifests.glob("*/*/*/*") if file.is_file())
    return sorted(_short(f"{'/'.join(parts)}:{tag}") for *parts, tag in found)
