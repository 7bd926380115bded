"""Small recipes and adapters for tests of the registry."""

from typing import Any

from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Recipe
from registry.records import Adapter, AdapterKey, NewVersion, Probe, Version

ENGINE = {
    "chat": "vllm",
    "embed": "sentence-transformers",
    "rerank": "sentence-transformers",
    "transcribe": "faster-whisper",
}
KEY = AdapterKey("m", "a")


def recipe(id_: str, task: str = "chat", **more: Any) -> Recipe:
    """Return a recipe, with adapter places if it is for chat."""
    places = {"adapters": {"device": 2, "host": 8}} if task == "chat" else {}
    values = {"id": id_, "version": 1, "task": task, "source": {"path": "x"}, "engine": {"name": ENGINE[task]}}
    return Recipe.model_validate({**values, "memory": places, **more})


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


def new(number: int, probe: Probe | None = None) -> NewVersion:
    return NewVersion(digest(number), rank=8, bytes=100 + number, source=f"path {number}", probe=probe)


def adapter(
    base: str,
    name: str,
    *digests: int,
    aliases: dict[str, int] | None = None,
    team: str = DEFAULT_TEAM,
    shared: bool = False,
) -> Adapter:
    """Return an adapter with one version per digest number, of which the last is current."""
    key = AdapterKey(base, name, team)
    versions = tuple(
        Version(key, place, digest(number), float(place), 8, 100, "test")
        for place, number in enumerate(digests or (1,), start=1)
    )
    return Adapter(key, 0.0, False, versions[-1], versions, aliases or {}, shared)
