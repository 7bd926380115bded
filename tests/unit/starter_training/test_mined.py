"""Hard negatives of a reranker's training are stored for later runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from starter_training.rerank import batches
from starter_training.rerank.text import Passage

CPU = torch.device("cpu")


def passages(word: str) -> list[Passage]:
    return [Passage(f"d{n}", f"f{n}", f"{word} {n}", ("what?",)) for n in range(6)]


def embedding(calls: list[str], what: str) -> Callable[[], Tensor]:
    def make() -> Tensor:
        calls.append(what)
        return torch.eye(6)

    return make


def test_negatives_are_searched_once_for_the_same_passages(tmp_path: Path) -> None:
    """`prepare` may write other passages into the folder, where the old numbers are invalid."""
    path, calls = tmp_path / "mined-0.safetensors", list[str]()
    for given in (passages("one"), passages("one"), passages("two")):
        found = batches.mined(
            path, given, [*range(6)], embedding(calls, "texts"), embedding(calls, "queries"), CPU
        )  # fmt: skip
        assert found.right.tolist() == [*range(6)]
    assert sorted(calls) == ["queries", "queries", "texts", "texts"]


def test_stored_negatives_are_read_to_the_training_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def witness(path: Path, device: str = "cpu") -> dict[str, Tensor]:
        devices.append(device)
        return load_file(path)

    monkeypatch.setattr("starter_training.rerank.batches.load_file", witness)
    make = embedding([], "")
    batches.mined(tmp_path / "mined-0.safetensors", passages("one"), [*range(6)], make, make, torch.device("cuda", 0))
    assert devices == ["cuda:0"]
