"""Adapters that are read by the form of an earlier one: what vLLM's loader would make of them, or left to it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters import cpu_kernel, staged_file
from adapters.staged_memory import StagedMemory
from adapters.vllm_forms import Forms, tensors
from adapters.vllm_read import FILES, read_adapter
from tests.contract import vllm_manager_fixtures as fixtures

pytestmark = pytest.mark.real
ALL = dict.fromkeys(fixtures.names(), 8)


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.lora import lora_model

    monkeypatch.setattr(lora_model, "safetensors", lora_model.safetensors)  # as it was, afterwards
    staged_file.patch(lora_model)


def write(folder: Path, seed: int, ranks: dict[str, int] = ALL, dtype: torch.dtype = torch.bfloat16, **c: Any) -> str:
    return str(fixtures.write_adapter(folder, ranks, seed, dtype, **c))


def told(value: object) -> object:
    """Tensors by their bits, everything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.contiguous().view(torch.int16).tolist()
    return [told(one) for one in value] if isinstance(value, list) else value


def facts(lora: Any) -> object:
    """All that vLLM keeps of an adapter."""
    whole = {name: value for name, value in vars(lora).items() if not name.startswith("roundhouse") and name != "loras"}
    parts = {
        name: (type(weights), {key: told(value) for key, value in vars(weights).items()})
        for name, weights in lora.loras.items()
    }
    return type(lora).__name__, whole, list(lora.loras), parts


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 999), large=st.booleans(), data=st.data())
def test_one_of_a_known_form_is_what_the_loader_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, large: bool, data: st.DataObject
) -> None:
    """Any ranks, and modules left out, packed ones too; in memory that is dirty, and in memory that is handed on."""
    with monkeypatch.context() as patch:
        if large:
            patch.setattr("adapters.staged_memory.LARGE", 1)
        worker, forms, memory = fixtures.worker_manager(16), Forms(), StagedMemory()
        modules = data.draw(st.lists(st.sampled_from(fixtures.names()), min_size=1, unique=True))
        ranks = {name: data.draw(st.sampled_from([8, 8, 1, 4, 16])) for name in modules}
        for number in range(3):
            path = write(tmp_path / "adapter", seed + number, ranks)
            plain = read_adapter(worker, 1 + number, path, StagedMemory())
            found = read_adapter(worker, 1 + number, path, memory, forms)
            assert forms.used == number
            assert facts(found) == facts(plain)
            assert all(
                (a is None or a.is_contiguous()) and (b is None or b.t().is_contiguous())
                for weights in found.loras.values()
                for a, b in tensors(weights)
            )


@pytest.mark.parametrize(
    "other",
    [
        {"ranks": ALL | {"model.layers.1.o_proj": 4}},
        {"ranks": {name: 8 for name in ALL if "o_proj" not in name}},
        {"r": 4, "lora_alpha": 4},
        {"base_model_name_or_path": "another"},
        {"dtype": torch.float16},
    ],
    ids=["a rank", "modules", "its config", "its base", "its dtype"],
)
def test_one_that_differs_in_more_than_values_is_the_loaders(tmp_path: Path, other: dict[str, Any]) -> None:
    worker, forms, memory = fixtures.worker_manager(16), Forms(), StagedMemory()
    read_adapter(worker, 1, write(tmp_path / "a", 1), memory, forms)
    path = write(tmp_path / "b", 2, **other)
    assert facts(read_adapter(worker, 2, path, memory, forms)) == facts(read_adapter(worker, 2, path, StagedMemory()))
    assert forms.used == 0
    read_adapter(worker, 3, write(tmp_path / "c", 3), memory, forms)
    assert forms.used == 1


@pytest.mark.parametrize("settings", [{"alpha_pattern": {}, "lora_alpha": 16}, {"dtype": torch.float32}])
def test_what_the_loader_changes_is_never_read_without_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    """A scale that it multiplies in; values that it rounds."""
    worker, forms, memory = fixtures.worker_manager(16), Forms(), StagedMemory()
    for seed in (1, 2):
        path = write(tmp_path / "a", seed, **settings)
        found = read_adapter(worker, seed, path, memory, forms)
        assert facts(found) == facts(read_adapter(worker, seed, path, StagedMemory()))
    assert forms.used == 0


def test_where_places_hold_other_values_the_loader_reads(tmp_path: Path) -> None:
    worker, forms = fixtures.worker_manager(16, torch.float32), Forms()
    for seed in (1, 2):
        lora = read_adapter(worker, seed, write(tmp_path / "a", seed), StagedMemory(), forms)
        assert {t.dtype for weights in lora.loras.values() for t in tensors(weights)[0] if t is not None} == {
            torch.float32
        }
    assert forms.used == 0


def shorten(folder: Path) -> None:
    os.truncate(folder / FILES[1], (folder / FILES[1]).stat().st_size - 2)


def spoil(folder: Path) -> None:
    with open(folder / FILES[1], "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x80\x7f")  # infinity


def lengthen(folder: Path) -> None:
    with open(folder / FILES[1], "ab") as file:
        file.write(b"\0\0")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / FILES[0]).unlink(), r"adapter_config\.json is not there"),
        (lambda folder: (folder / FILES[1]).unlink(), r"adapter_model\.safetensors is not there"),
        (lambda folder: os.truncate(folder / FILES[1], 4), "less than a header"),
        (shorten, "cut short"),
        (lengthen, "has a tail"),
        (spoil, "model.layers.*: values that are not finite"),
    ],
    ids=["no config", "no tensors", "no header", "cut short", "a tail", "infinite"],
)
def test_what_is_amiss_is_told_as_the_loader_does(tmp_path: Path, harm: Callable[[Path], None], said: str) -> None:
    worker, forms, memory = fixtures.worker_manager(16), Forms(), StagedMemory()
    read_adapter(worker, 1, write(tmp_path / "a", 1), memory, forms)
    path = write(tmp_path / "b", 2)
    harm(tmp_path / "b")
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match=said):
        read_adapter(worker, 2, path, memory, forms)
    assert forms.used == 0
    assert len(os.listdir("/proc/self/fd")) == files
    read_adapter(worker, 3, write(tmp_path / "b", 2), memory, forms)
    assert forms.used == 1


def test_without_the_compiled_reader_there_are_no_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernel, "load", lambda: None)
    worker, forms = fixtures.worker_manager(16), Forms()
    for seed in (1, 2):
        read_adapter(worker, seed, write(tmp_path / "a", seed), StagedMemory(), forms)
    assert forms.used == 0
