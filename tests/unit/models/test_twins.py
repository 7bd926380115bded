"""Which models may follow each other in one engine: equal in everything but the values of their weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from models import twins
from registry.recipe import Recipe

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "_name_or_path": "here", "transformers_version": "1"}
RECIPE = {
    "id": "m", "version": 1, "task": "chat", "source": {"path": "x"}, "dtype": "float32", "context_length": 64,
    "engine": {"name": "vllm", "flags": {"tool_call_parser": "pythonic"}},
    "memory": {"kv_cache": "1MiB", "adapters": {"device": 1, "host": 2, "max_rank": 8}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "engine_version", lambda name: "0.32.0")


def model(folder: Path, seed: int = 0) -> Path:
    folder.mkdir()
    generator = np.random.default_rng(seed)
    tensors = {name: generator.random((8, 8), dtype=np.float32) for name in ("model.a.weight", "model.b.weight")}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def key(path: Path, device: str = "cpu", **change: object) -> str | None:
    return twins.key(Recipe.model_validate({**RECIPE, **change}), path, device)


def test_models_that_differ_in_values_only_are_twins(tmp_path: Path) -> None:
    one, two = model(tmp_path / "one"), model(tmp_path / "two", seed=1)
    (two / "README.md").write_text("trained longer")
    (two / ".cache").mkdir()
    (two / ".cache" / "x.json").write_text("{}")
    (two / "config.json").write_text(json.dumps({**CONFIG, "_name_or_path": "there", "transformers_version": "2"}))
    assert (one / "model.safetensors").read_bytes() != (two / "model.safetensors").read_bytes()
    assert key(one) is not None
    assert key(one) == key(two, id="other", version=2, residency={"pin": True}, queue={"max_waiting": 1})


def _config(**change: object) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))


def _file(name: str, text: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    return write


def _tensors(**change: tuple[int, ...]) -> Callable[[Path], object]:
    shapes = {"model.a.weight": (8, 8), "model.b.weight": (8, 8), **change}
    return lambda folder: save_file(
        {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors"
    )


@pytest.mark.parametrize(
    "change",
    [
        _config(hidden_size=9), _config(rope_theta=1.0), _config(torch_dtype="float16"),
        _file("tokenizer.json", '{"a": 1}'), _file("tokenizer_config.json", "{}"), _file("chat_template.jinja", "x"),
        _file("generation_config.json", '{"temperature": 0.5}'), _file("deeper/anything", "x"),
        _tensors(**{"model.b.weight": (4, 16)}), _tensors(**{"model.c.weight": (1, 1)}),
    ],
)  # fmt: skip
def test_any_other_difference_of_files_counts(tmp_path: Path, change: Callable[[Path], object]) -> None:
    one, two = model(tmp_path / "one"), model(tmp_path / "two")
    assert key(one) == key(two)
    change(two)
    assert key(two) is not None
    assert key(one) != key(two)


def test_the_type_of_a_tensor_counts(tmp_path: Path) -> None:
    one, two = model(tmp_path / "one"), model(tmp_path / "two")
    tensors = {name: np.zeros((8, 8), np.float16) for name in ("model.a.weight", "model.b.weight")}
    save_file(tensors, two / "model.safetensors")
    assert key(one) != key(two)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"}, {"context_length": 32}, {"batching": {"max_requests": 2}},
        {"memory": {"kv_cache": "2MiB", "adapters": {"device": 1, "host": 2, "max_rank": 8}}},
        {"memory": {"kv_cache": "1MiB", "adapters": {"device": 2, "host": 2, "max_rank": 8}}},
        {"memory": {"kv_cache": "1MiB", "adapters": {"device": 1, "host": 2, "max_rank": 16}}},
        {"engine": {"name": "vllm", "flags": {"tool_call_parser": "hermes"}}}, {"engine": {"name": "vllm"}},
    ],
)  # fmt: skip
def test_every_setting_of_the_engine_counts(tmp_path: Path, change: dict[str, Any]) -> None:
    one = model(tmp_path / "one")
    assert key(one, **change) is not None
    assert key(one) != key(one, **change)


def test_what_is_not_known_has_no_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = model(tmp_path / "one")
    assert key(one, "cuda:0") is None
    assert key(one, residency={"swap": False}) is None
    for flags in ({"speculative-config": "{}"}, {"quantization": "fp8"}, {"tensor_parallel_size": 2}):
        assert key(one, engine={"name": "vllm", "flags": flags}) is None
    for number, change in enumerate(
        (
            _config(architectures=["MambaForCausalLM"]), _config(architectures=[]), _config(quantization_config={}),
            _file("config.json", "["), _file("other.safetensors", "beside"),
            _file("model.safetensors", "no weights"),
        )
    ):  # fmt: skip
        odd = model(tmp_path / str(number))
        change(odd)
        assert key(odd) is None
    monkeypatch.setattr(twins, "engine_version", lambda name: "0.33.0")
    assert key(one) is None
