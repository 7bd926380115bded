"""Training some of the starter adapters leaves the others unchanged, bit for bit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from starter_training import cards, figures
from starter_training.chat.export import save_resume
from starter_training.chat.network import SHAPE, new_adapters, new_weights
from starter_training.chat.run_state import Run
from starter_training.chat.tasks.conversations import TASK_NAMES
from starter_training.chat.train import _tasks
from starter_training.chat.train_adapters import RESUME, train_adapters
from starter_training.install import CHAT, install_chat


@pytest.mark.long
def test_only_the_named_adapters_change(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    before = new_adapters(SHAPE, len(TASK_NAMES), 1, cpu)
    for name, value in before.items():
        if name.endswith("lora_B"):
            value.normal_(0, 0.02)
    save_resume(before, tmp_path / RESUME)
    trained = ("count-words", "last-word")
    run = Run(tmp_path / "out", cpu, rows=2, length=64, workers=0, seed=1, compile=False, tasks=trained)

    train_adapters(run, new_weights(SHAPE, 1, cpu), minutes=0.003, resume=tmp_path)

    after = load_file(run.out / RESUME)
    for name, value in before.items():
        for place, task in enumerate(TASK_NAMES):
            assert torch.equal(after[name][place], value[place]) == (task not in trained), (name, task)
    assert sorted(path.name for path in (run.out / "adapters").iterdir()) == sorted(TASK_NAMES)
    record = run.record["adapters"]
    assert isinstance(record, dict)
    assert set(record["own"]) == set(trained)
    assert record["steps"] >= 1


def test_tasks_may_be_named_in_any_order_and_must_exist() -> None:
    assert _tasks(None) == TASK_NAMES
    assert _tasks(["kebab-case", "acronym"]) == tuple(name for name in TASK_NAMES if name in {"acronym", "kebab-case"})
    with pytest.raises(SystemExit, match=r"unknown tasks.*'sing'"):
        _tasks(["sing"])


def test_adapters_can_be_installed_without_their_base(tmp_path: Path) -> None:
    pack, trained = tmp_path / "pack", tmp_path / "trained"
    for folder in (pack / CHAT, *(trained / "adapters" / name for name in TASK_NAMES)):
        folder.mkdir(parents=True)
        (folder / "some.safetensors").write_bytes(folder.name.encode())
    (pack / "adapters" / "former").mkdir(parents=True)
    (pack / "adapters" / "former" / "some.safetensors").touch()
    first = {"base": {"steps": 5}, "adapters": {"steps": 6}}
    figures.update(pack, CHAT, training=first)
    runs = [
        {"steps": 7, "tokens": 2_000_000, "seconds": 60.0, "own": {"acronym": 0.5}},
        {"steps": 8, "tokens": 1_500_000, "seconds": 120.0, "own": {"rot13": 0.9, "acronym": 0.96}},
    ]

    for run in runs:
        (trained / "train.json").write_text(json.dumps({"adapters": run}))
        install_chat(trained, pack)

    section = figures.load(pack)[CHAT]
    assert section["training"] == first | {"again": runs}
    assert figures.changed(pack, section) == []
    assert not (pack / "adapters" / "former").exists()
    assert (pack / CHAT / "some.safetensors").read_bytes() == CHAT.encode()
    assert set(section["files"]) == {
        f"{CHAT}/some.safetensors",
        *(f"adapters/{n}/some.safetensors" for n in TASK_NAMES),
    }
    reported = " ".join(cards._again(runs).split())
    assert "acronym, rot13; 15 steps, 3.5 million tokens, 3 minutes" in reported
    assert cards._again([]) == ""
