from collections.abc import Callable
from pathlib import Path

import pytest

from registry.files import context
from registry.files.context import settle
from registry.recipes.definition import Recipe
from tests.unit.registry.makers import recipe


def folder(path: Path, size: int) -> Path:
    with (path / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return path


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that settles the dtype of a model with the given size, device and recipe fields."""

    def settled(size: int = 1000, kind: str = "cpu", *, native: bool = False, **fields: object) -> str:
        monkeypatch.setattr(context, "native_bfloat16", lambda: native)
        return settle(recipe("m", **fields), folder(tmp_path, size), kind).dtype

    return settled


def test_small_chat_models_compute_in_32_bits_where_16_are_emulated(reported: Callable[..., str]) -> None:
    assert reported() == "float32"
    assert reported(context.SMALL_WEIGHTS) == "float32"


@pytest.mark.parametrize(
    "other",
    [
        {"native": True},
        {"size": context.SMALL_WEIGHTS + 1},
        {"kind": "cuda"},
        {"task": "embed", "engine": {"name": "sentence-transformers"}},
    ],
)
def test_other_dtypes_are_left_to_the_engine(reported: Callable[..., str], other: dict[str, object]) -> None:
    assert reported(**other) == "auto"


def test_a_recipes_dtype_is_kept(reported: Callable[..., str]) -> None:
    assert reported(dtype="bfloat16") == "bfloat16"


@pytest.mark.parametrize(
    ("features", "native"),
    [
        ("fpu avx512f avx512_bf16", True),
        ("fpu avx512f avx512_vnni", False),
        ("fp asimd bf16", True),
        ("fp asimd", False),
        ("", True),
    ],
)
def test_the_processors_features_decide(monkeypatch: pytest.MonkeyPatch, features: str, native: bool) -> None:
    monkeypatch.setattr(context, "features", lambda: frozenset(features.split()))
    assert context.native_bfloat16() is native


def test_the_recipe_itself_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine: Recipe = recipe("m")
    monkeypatch.setattr(context, "native_bfloat16", lambda: False)
    assert settle(mine, folder(tmp_path, 1), "cpu").dtype == "float32"
    assert mine.dtype == "auto"
