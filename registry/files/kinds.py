"""Whether a source's files are of the kind that a recipe says. Told only where the files leave no doubt."""

import json
from collections.abc import Collection
from pathlib import Path

from registry.files.no_adapter import something_else
from registry.recipes.definition import Task


def misfit(folder: Path, task: Task | None) -> str | None:
    """What is wrong with `folder` as the source of a model for `task`, or, with None, of an adapter; None: nothing."""
    names = {child.name for child in folder.iterdir()}
    if task is None:
        if "adapter_config.json" in names:
            return None
        return something_else(names) or "it holds no adapter: adapter_config.json is missing"
    if "adapter_config.json" in names and "config.json" not in names:
        return "it is an adapter's folder, not a model's: name its base here, and this folder below 'adapters'"
    kind, found = _kind(folder, names)
    if found is None or task in found:
        return None
    made = f"made for {found[0].value}, and this recipe is for {task.value}" if found else "before anything loads it"
    return f"it holds {kind}, {made}"


def _kind(folder: Path, names: Collection[str]) -> tuple[str, tuple[Task, ...] | None]:
    """What the files are, and for which tasks; None: that cannot be told."""
    if "model.bin" in names and {"vocabulary.json", "vocabulary.txt"} & set(names):
        return "a speech model in CTranslate2's format", (Task.TRANSCRIBE,)
    if "modules.json" in names:
        return "a sentence-transformers model", (Task.EMBED, Task.RERANK)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = str(config["architectures"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return "", None
    if name.startswith("Whisper"):
        return f"a {name} of transformers, which is converted to CTranslate2's format", ()
    if name.endswith("ForSequenceClassification"):
        return f"a {name}", (Task.RERANK,)
    if name.endswith(("ForCausalLM", "ForConditionalGeneration")):
        return f"a {name}", (Task.CHAT, Task.EMBED, Task.RERANK)
    return "", None
