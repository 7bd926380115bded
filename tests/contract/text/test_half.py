"""`dtype: auto` on a GPU, whose place the CPU takes here."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from models.text import embeddings, half, rerank
from tests.contract.text.fixtures import minilm, recipe

pytestmark = pytest.mark.real
CARD = "cuda:0"


def opened(
    monkeypatch: pytest.MonkeyPatch, *, dtype: str = "auto", device: str = CARD,
    spoil: Callable[[Any], Any] = lambda model: model,
) -> tuple[torch.dtype, list[str]]:  # fmt: skip
    """Return the dtype of the model that serves, and the setting of TF32. `spoil` changes a model in float16."""
    from sentence_transformers import SentenceTransformer

    tf32: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", tf32.append)

    def make(path: str, *, device: str, **options: Any) -> Any:
        options["model_kwargs"]["dtype"] = getattr(torch, str(options["model_kwargs"]["dtype"]).split(".")[-1], "auto")
        model = SentenceTransformer(path, device="cpu", **options)
        return spoil(model) if next(model.parameters()).dtype is torch.float16 else model

    selected = recipe("embed", dtype=dtype)
    model = half.open_settled(selected, minilm(), device, make, embeddings._long_answer, embeddings._is_like)
    return next(model.parameters()).dtype, tf32


def test_float32_files_are_computed_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(monkeypatch) == (torch.float16, [])


@pytest.mark.parametrize(("dtype", "device"), [("auto", "cpu"), ("float32", CARD)])
def test_a_cpu_and_a_recipe_that_says_so_keep_float32(monkeypatch: pytest.MonkeyPatch, dtype: str, device: str) -> None:
    assert opened(monkeypatch, dtype=dtype, device=device) == (torch.float32, [])


def overflows(model: Any) -> Any:
    next(model.parameters()).data.fill_(torch.inf)
    return model


def answers_otherwise(model: Any) -> Any:
    table = next(model.parameters()).data
    table.copy_(table.flip(0))
    return model


def mixes_dtypes(model: Any) -> Any:
    raise RuntimeError("mat1 and mat2 must have the same dtype, but got Half and Float")


@pytest.mark.parametrize("spoil", [overflows, answers_otherwise, mixes_dtypes])
def test_a_network_that_is_wrong_in_float16_stays_in_float32(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], Any]
) -> None:
    assert opened(monkeypatch, spoil=spoil) == (torch.float32, ["high"])


def lacks_memory(model: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_lack_of_memory_is_not_taken_for_a_network_that_is_wrong_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        opened(monkeypatch, spoil=lacks_memory)


@pytest.mark.parametrize(
    ("narrow", "alike"), [([1.01, -8.2], True), ([1.5, -8.0], False), ([float("nan"), -8.0], False)]
)
def test_scores_in_16_bits_are_compared_with_those_in_float32(narrow: list[float], alike: bool) -> None:
    assert rerank._is_like(narrow, [1.0, -8.0]) is alike
