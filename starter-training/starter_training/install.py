"""Puts trained models into the pack: copies the engines' files, and records digests and the training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from starter_training import figures

CHAT, RERANK, SPEECH, EMBED = "starter-chat", "starter-rerank", "starter-speech", "starter-embed"
HELD_OUT = "held_out.json.xz"


def _copy(source: Path, target: Path, names: Iterable[str] | None = None) -> list[Path]:
    """Copy files (all, or those named) with read permission for everybody; returns the copies.

    Raises FileNotFoundError, before anything is copied, if one is missing.
    """
    chosen = [source / name for name in names] if names else [path for path in source.iterdir() if path.is_file()]
    if missing := [str(path) for path in chosen if not path.is_file()]:
        raise FileNotFoundError(f"not trained yet: {', '.join(missing)}")
    target.mkdir(parents=True, exist_ok=True)
    copies = []
    for path in chosen:
        copy = target / path.name
        shutil.copyfile(path, copy)
        copy.chmod(0o644)
        copies.append(copy)
    return copies


def install_chat(trained: Path, pack: Path) -> None:
    """Install the base and the twenty adapters from train.py's output, or only adapters if it has no base.

    Adapters with other names are removed from the pack.
    """
    from starter_training.chat.tasks.conversations import TASK_NAMES

    record = json.loads((trained / "train.json").read_text())
    if "base" in record:
        _copy(trained / CHAT, pack / CHAT)
    else:
        before = figures.load(pack)[CHAT]["training"]
        record = before | {"again": [*before.get("again", ()), record["adapters"]]}
    for name in TASK_NAMES:
        _copy(trained / "adapters" / name, pack / "adapters" / name)
    for folder in (pack / "adapters").iterdir():
        if folder.name not in TASK_NAMES:  # its task was replaced
            shutil.rmtree(folder)
    weights = [*(pack / CHAT).glob("*.safetensors"), *(pack / "adapters").glob("*/*.safetensors")]
    figures.update(pack, CHAT, files=figures.digests(pack, weights), training=record)


def install_rerank(trained: Path, data: Path, pack: Path) -> None:
    """Install train.py's output, with the held-out set from prepare's folder beside the weights."""
    _copy(trained / RERANK, pack / RERANK)
    (held_out,) = _copy(data, pack / RERANK, [HELD_OUT])
    weights = [*(pack / RERANK).glob("*.safetensors"), held_out]
    record = json.loads((trained / "train.json").read_text())
    for private in ("data", "out"):
        record.get("options", {}).pop(private, None)
    figures.update(pack, RERANK, files=figures.digests(pack, weights), training=record)


def install_speech(trained: Path, pack: Path) -> None:
    """Install train.py's output, converted to CTranslate2 in int8."""
    from starter_training.speech.convert import convert

    convert(trained / "hf", pack / SPEECH)
    record = json.loads((trained / "train.json").read_text())
    figures.update(pack, SPEECH, files=figures.digests(pack, [pack / SPEECH / "model.bin"]), training=record)
