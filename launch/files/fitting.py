"""Check that a source's files match a recipe."""

from pathlib import Path

from launch.conversion.gguf import gguf_of
from launch.files.detect import detect
from launch.files.listing import list_folder
from models.estimate import ODD
from registry.errors import Unfit
from registry.files.sources import something_else
from registry.recipes.definition import Task

TAKES = {Task.EMBED: (Task.CHAT,), Task.RERANK: (Task.CHAT, Task.EMBED)}
"""Settings of sentence-transformers that override its files."""


def misfit(folder: Path, task: Task | None) -> str | None:
    """The reason why `folder` is no model for `task`, or (None) no adapter; None: it is."""
    if task is None:
        names = [child.name for child in folder.iterdir()]
        if "adapter_config.json" in names:
            return None
        return f"{folder}: {something_else(names) or 'it holds no adapter: adapter_config.json is missing.'}"
    try:
        if gguf_of(folder) is not None:
            return None if task is Task.CHAT else f"{folder} holds a GGUF, and only chat models are read from one"
        detection = detect(list_folder(folder))
    except Unfit as unfit:
        return unfit.message
    except ODD as error:
        return f"{folder}: its files say what no model's say ({type(error).__name__}): look at its config.json"
    if detection.task is not task and detection.task not in TAKES.get(task, ()):
        return (
            f"{folder} holds a model for {detection.task.value} ({detection.why}), and this recipe is for {task.value}"
        )
    return None
