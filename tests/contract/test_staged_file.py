"""Adapters read without a mapped file, in one pass: bit for bit what vLLM's loader, PyTorch and safetensors make."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from adapters import cpu_kernel, staged_file, vllm_read
from adapters.staged_file import StagedFile
from adapters.staged_memory import StagedMemory
from tests.contract import vllm_manager_fixtures as fixtures
from tests.contract.vllm_stock import stock

pytestmark = pytest.mark.real
DTYPES = [torch.bfloat16, torch.float32, torch.float16]
QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # files and patches of one example are overwritten by the next


@pytest.fixture(params=["compiled", "without a compiler"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled":
        assert cpu_kernel.load() is not None, "this machine has no C compiler: `make` needs one too"
    else:
        monkeypatch.setattr(cpu_kernel, "load", lambda: None)


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.lora import lora_model

    monkeypatch.setattr(lora_model, "safetensors", lora_model.safetensors)  # as it was, afterwards
    staged_file.patch(lora_model)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


@QUICK
@given(
    seed=st.integers(0, 999),
    dtype=st.sampled_from(DTYPES),
    rank=st.sampled_from([1, 2, 7, 8, 9, 16, 24, 64]),
    widths=st.lists(st.sampled_from([1, 5, 8, 16, 31, 33, 72, 2100]), min_size=1, max_size=4),
    bad=st.sampled_from([None, math.nan, math.inf, -math.inf]),
    large=st.booleans(),
    data=st.data(),
)
def test_tensors_are_the_files_and_what_is_not_finite_is_seen(
    way: None, tmp_path: Path, seed: int, dtype: torch.dtype, rank: int, widths: list[int], bad: float | None,
    large: bool, data: st.DataObject,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for i, width in enumerate(widths):
        tensors[f"layer.{i}.lora_A.weight"] = torch.randn(rank, width, generator=generator).to(dtype)
        tensors[f"layer.{i}.lora_B.weight"] = torch.randn(width, rank, generator=generator).to(dtype)
    tensors["layer.0.lora_B.weight"][0, 0] = torch.finfo(dtype).max
    spoilt = data.draw(st.sampled_from(sorted(tensors))) if bad is not None else None
    if spoilt is not None:
        values = tensors[spoilt].view(-1)
        values[data.draw(st.integers(0, values.numel() - 1))] = bad
    if large:  # in memory that is mapped, and dirty
        tensors["other.lora_A.weight"] = torch.ones(1 << 10, 1 << 9, dtype=dtype)
    path = tmp_path / "adapter_model.safetensors"
    save_file(tensors, path)
    memory = StagedMemory()
    memory.take(3 << 20).fill_(0xFF)
    with StagedFile(str(path), memory) as file:
        found = {name: file.get_tensor(name) for name in list(file.keys())}
    assert found.keys() == tensors.keys()
    for name, tensor in load_file(path).items():
        assert found[name].shape == tensor.shape
        assert found[name].dtype is dtype
        assert torch.equal(bits(found[name]), bits(tensor)), name
        assert (found[name].t() if "lora_B" in name else found[name]).is_contiguous()
    fine = {tensor.data_ptr() for name, tensor in found.items() if name != spoilt}
    assert file.finite == (fine if cpu_kernel.load() is not None and dtype is torch.bfloat16 else set())


def as_before(worker: Any, path: Path) -> Any:
    """vLLM's loader over safetensors, then copies by PyTorch: the way adapters were staged before this file was."""
    from vllm.lora.request import LoRARequest

    lora = worker._load_adapter(LoRARequest("x", 1, str(path)))
    for weights in lora.loras.values():
        weights.lora_a, weights.lora_b = weights.lora_a.clone(), cpu_kernel.turned(weights.lora_b)
    worker._adapter_manager._create_merged_loras_inplace(lora)
    return lora


@QUICK
@given(
    seed=st.integers(0, 999),
    dtype=st.sampled_from(DTYPES),
    place_dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float16]),
    alpha=st.sampled_from([8, 16, 5]),
    data=st.data(),
)
def test_staged_adapters_equal_those_of_safetensors_and_pytorch(
    way: None, tmp_path: Path, seed: int, dtype: torch.dtype, place_dtype: torch.dtype, alpha: int, data: st.DataObject
) -> None:
    """Any ranks, dtypes and scales, and modules left out, packed ones too."""
    modules = data.draw(st.lists(st.sampled_from(fixtures.names()), min_size=1, unique=True))
    ranks = {name: data.draw(st.sampled_from([8, 8, 1, 4, 16])) for name in modules}
    path = fixtures.write_adapter(tmp_path / "adapter", ranks, seed, dtype, lora_alpha=alpha, alpha_pattern={})
    worker = fixtures.worker_manager(16, place_dtype)
    memory = StagedMemory()
    wanted, found = as_before(worker, path).loras, vllm_read.read_adapter(worker, 1, str(path), memory).loras
    assert found.keys() == wanted.keys()
    for name, weights in found.items():
        pairs = zip(vllm_read.tensors(weights), vllm_read.tensors(wanted[name]), strict=True)
        for (a, b), (wanted_a, wanted_b) in pairs:
            assert (a is None) == (wanted_a is None)
            if a is not None and b is not None:
                assert torch.equal(bits(a), bits(wanted_a))
                assert torch.equal(bits(b), bits(wanted_b))
                assert a.is_contiguous()
                assert b.t().is_contiguous(), "the order of the places"


@pytest.mark.parametrize("place", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("alpha", [8, 1 << 20])
@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_what_is_not_finite_is_refused_with_its_module(
    way: None, tmp_path: Path, bad: float | None, alpha: int, place: torch.dtype
) -> None:
    """Also where only the scale makes it so."""
    tensors = {}
    for name in fixtures.names():
        for half, shape in zip("AB", fixtures.shapes(name, 8), strict=True):
            tensors[f"{name}.lora_{half}"] = torch.ones(shape).bfloat16()
    wanted = []
    if bad is not None:
        tensors["model.layers.0.o_proj.lora_A"][3, 3] = bad
        tensors["model.layers.1.v_proj.lora_B"][7, 7] = bad
        wanted = ["model.layers.0.o_proj", "model.layers.1.qkv_proj"]
    elif alpha > 8:
        tensors["model.layers.1.down_proj.lora_B"][0, 0] = 3e38
        wanted = ["model.layers.1.down_proj"]
    path = fixtures.write_tensors(tmp_path / "adapter", tensors, r=8, lora_alpha=alpha)
    worker = fixtures.worker_manager(16, place)
    if not wanted:
        vllm_read.read_adapter(worker, 1, str(path), StagedMemory())
        return
    with pytest.raises(ValueError, match="not finite") as fault:
        vllm_read.read_adapter(worker, 1, str(path), StagedMemory())
    assert sorted(str(fault.value).split("\n")) == [f"{name}: values that are not finite" for name in wanted]


CUT_SHORT = """
import os, signal, sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="pt") as file:
    tensor = file.get_tensor("layer.lora_A.weight")
    os.truncate(sys.argv[1], 4096)
    tensor.clone()
"""


def test_a_file_that_is_cut_short_while_it_is_read_is_a_fault_and_no_signal(way: None, tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.safetensors"

    def write() -> None:
        save_file({f"layer.lora_{half}.weight": torch.ones(512, 512).bfloat16() for half in "AB"}, path)

    write()
    ended = subprocess.run([sys.executable, "-c", CUT_SHORT, str(path)], check=False, capture_output=True)
    assert ended.returncode == -signal.SIGBUS, "what safetensors' own mapping does"
    for left in (4096, 600_000):
        write()
        with StagedFile(str(path), StagedMemory()) as file:
            os.truncate(path, left)
            with pytest.raises(ValueError, match=r"adapter_model\.safetensors: it became shorter"):
                file.get_tensor("layer.lora_A.weight")
    with pytest.raises(ValueError, match="cut short or has a tail"):
        StagedFile(str(path), StagedMemory())


def test_vllms_own_loader_maps_the_file_and_the_patched_one_does_not(tmp_path: Path) -> None:
    from vllm.lora.request import LoRARequest

    name = "model.layers.0.o_proj"
    tensors = {
        f"{name}.lora_{h}": torch.ones(s).bfloat16() for h, s in zip("AB", fixtures.shapes(name, 8), strict=True)
    }
    path = fixtures.write_tensors(tmp_path / "adapter", tensors, r=8, lora_alpha=8)
    worker = fixtures.worker_manager(16)
    for module, wanted in ((stock("vllm.lora.lora_model"), False), (sys.modules["vllm.lora.lora_model"], True)):
        worker._lora_model_cls = module.LoRAModel
        file = StagedFile(str(path / vllm_read.FILES[1]), StagedMemory())
        with staged_file.instead_of_safetensors(file):
            worker._load_adapter(LoRARequest("x", 1, str(path)))
        assert file.used is wanted


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64])
def test_other_dtypes_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "adapter_model.safetensors"
    save_file({"layer.lora_A.weight": torch.ones(4, 4).to(dtype)}, path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="dtype"):
        StagedFile(str(path), StagedMemory())
    assert len(os.listdir("/proc/self/fd")) == before
