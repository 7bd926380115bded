"""Adapters from a file to a place equal bit for bit what vLLM's loader makes, whatever happens to the file."""

import math
import os
import signal
import subprocess
import sys
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from models.chat.vllm.adapters import read, stage
from models.chat.vllm.adapters.read import FILES, ReadFile, read_adapter, tensors
from tests.contract.vllm import manager_fixtures as fixtures
from tests.contract.vllm.cpu.ways import WAYS, way
from tests.contract.vllm.stock import stock
from tests.eventually import PATIENCE

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patched_loader")]
RANK = 16
DTYPES = [torch.bfloat16, torch.float32, torch.float16]
ALL = dict.fromkeys(fixtures.names(), 8)
QUICK = settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)  # each example overwrites the files of the one before


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def test_a_file_of_no_tensors_is_read(tmp_path: Path) -> None:
    """The search for weights reports what is wrong with it."""
    save_file({}, tmp_path / FILES[1])
    with ReadFile(str(tmp_path / FILES[1])) as read:
        assert not read.keys()


# --- the file ------------------------------------------------------------------------------------------------------
@QUICK
@given(seed=st.integers(0, 999), dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4))
def test_tensors_equal_the_files(tmp_path: Path, seed: int, dtypes: list[torch.dtype]) -> None:
    """Also if a wider one begins at an odd offset."""
    generator = torch.Generator().manual_seed(seed)
    written = {f"{i}": torch.randn(1 + i, 3 + 2 * i, generator=generator).to(d) for i, d in enumerate(dtypes)}
    path = tmp_path / FILES[1]
    save_file(written, path)
    with ReadFile(str(path)) as read:
        found = {name: read.get_tensor(name) for name in read.keys()}  # noqa: SIM118  (as vLLM does)
    assert found.keys() == written.keys()
    for name, tensor in load_file(path).items():
        assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(bits(found[name]), bits(tensor))


CUT_SHORT = """
import os, sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="pt") as file:
    tensor = file.get_tensor("layer.lora_A.weight")
    os.truncate(sys.argv[1], 4096)
    tensor.clone()
"""


def test_a_file_that_is_cut_short_is_a_fault_and_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / FILES[1]

    def write() -> None:
        save_file({f"layer.lora_{half}.weight": torch.ones(512, 512).bfloat16() for half in "AB"}, path)

    write()
    ended = subprocess.run([sys.executable, "-c", CUT_SHORT, str(path)], check=False, capture_output=True)
    assert ended.returncode == -signal.SIGBUS, "safetensors' own mapping is killed"
    with pytest.raises(ValueError, match="truncated or has extra bytes"):
        ReadFile(str(path))
    write()
    with ReadFile(str(path)) as read:
        os.truncate(path, 4096)
        assert bool((read.get_tensor("layer.lora_A.weight") == 1).all()), "it was copied to memory"
    stock_preadv = os.preadv

    def preadv(fd: int, buffers: list[Any], offset: int) -> int:
        if offset > 8:
            os.truncate(path, 600)
        return stock_preadv(fd, buffers, offset)

    write()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors: it became shorter"):
        ReadFile(str(path))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64])
def test_other_dtypes_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / FILES[1]
    save_file({"layer.lora_A.weight": torch.ones(4, 4).to(dtype)}, path)
    with pytest.raises(ValueError, match="dtype"):
        ReadFile(str(path))


# --- vLLM's loader -------------------------------------------------------------------------------------------------
@QUICK
@given(
    seed=st.integers(0, 999),
    dtype=st.sampled_from(DTYPES),
    place_dtype=st.sampled_from(DTYPES),
    alpha=st.sampled_from([8, 16, 5]),
    data=st.data(),
)
def test_an_adapter_is_read_as_vllm_reads_a_mapped_file(
    tmp_path: Path, seed: int, dtype: torch.dtype, place_dtype: torch.dtype, alpha: int, data: st.DataObject
) -> None:
    """With any ranks, dtypes and scales, and without some modules, also packed ones."""
    from vllm.lora.request import LoRARequest

    modules = data.draw(st.lists(st.sampled_from(fixtures.names()), min_size=1, unique=True))
    ranks = {name: data.draw(st.sampled_from([8, 8, 1, 4, 16])) for name in modules}
    path = fixtures.write_adapter(tmp_path / "adapter", ranks, seed, dtype, lora_alpha=alpha, alpha_pattern={})
    plain, worker = (fixtures.worker_manager(RANK, place_dtype) for _ in range(2))
    plain._lora_model_cls = stock("vllm.lora.lora_model").LoRAModel
    expected = plain._load_adapter(LoRARequest("x", 1, str(path)))
    plain._adapter_manager._create_merged_loras_inplace(expected)
    found = read_adapter(worker, 1, str(path)).loras
    assert found.keys() == expected.loras.keys()
    for name, weights in found.items():
        for pair, expected_pair in zip(tensors(weights), tensors(expected.loras[name]), strict=True):
            for half, expected_half in zip(pair, expected_pair, strict=True):
                assert (half is None) == (expected_half is None)
                if half is not None and expected_half is not None:
                    assert torch.equal(bits(half), bits(expected_half))


@pytest.mark.parametrize("place", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("alpha", [8, 1 << 20])
@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_values_that_are_not_finite_are_refused_with_their_module(
    tmp_path: Path, bad: float | None, alpha: int, place: torch.dtype
) -> None:
    """Also if they only become so by the scale."""
    written = {}
    for name in fixtures.names():
        for half, shape in zip("AB", fixtures.shapes(name, 8), strict=True):
            written[f"{name}.lora_{half}"] = torch.ones(shape).bfloat16()
    expected = []
    if bad is not None:
        written["model.layers.0.o_proj.lora_A"][3, 3] = bad
        written["model.layers.1.v_proj.lora_B"][7, 7] = bad
        expected = ["model.layers.0.o_proj", "model.layers.1.qkv_proj"]
    elif alpha > 8:
        written["model.layers.1.down_proj.lora_B"][0, 0] = 3e38
        expected = ["model.layers.1.down_proj"]
    path = str(fixtures.write_tensors(tmp_path / "adapter", written, r=8, lora_alpha=alpha))
    worker = fixtures.worker_manager(RANK, place)
    if not expected:
        read_adapter(worker, 1, path)
        return
    with pytest.raises(ValueError, match="not finite") as fault:
        read_adapter(worker, 1, path)
    assert sorted(str(fault.value).split("\n")) == [f"{name}: values that are not finite" for name in expected]


def test_one_pair_for_a_layer_of_several_parts_is_split(tmp_path: Path) -> None:
    """Mamba-2's `in_proj` is one layer in peft and five parts in vLLM. Such adapters used to be refused."""
    worker, name = fixtures.worker_manager(RANK), "model.layers.0.in_proj"
    manager = worker._adapter_manager
    manager.modules[name] = manager.modules.pop("model.layers.0.gate_up_proj")
    manager.packed_modules.pop("model.layers.0.gate_up_proj")
    manager.supported_lora_modules.append("in_proj")
    a, b = torch.randn(8, fixtures.INPUT).bfloat16(), torch.randn(2 * fixtures.WIDTHS["up_proj"], 8).bfloat16()
    path = fixtures.write_tensors(tmp_path / "a", {f"{name}.lora_A": a, f"{name}.lora_B": b}, r=8, lora_alpha=8)
    (gate, up) = tensors(read_adapter(worker, 1, str(path)).loras[name])
    for (own_a, own_b), rows in zip((gate, up), b.split(fixtures.WIDTHS["up_proj"]), strict=True):
        assert own_a is not None
        assert own_b is not None
        assert torch.equal(bits(own_a), bits(a))
        assert torch.equal(bits(own_b), bits(rows))
    narrow = {f"{name}.lora_A": a, f"{name}.lora_B": b[1:].contiguous()}
    with pytest.raises(ValueError, match="1 parts where the layer has 2"):
        read_adapter(worker, 2, str(fixtures.write_tensors(tmp_path / "b", narrow, r=8, lora_alpha=8)))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path = fixtures.write_adapter(tmp_path / "a", ALL, 1, torch.bfloat16)
    (path / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is not there"):
        read_adapter(fixtures.worker_manager(RANK), 1, str(path))


def test_a_packed_layer_is_read_by_its_own_name_if_adapters_have_it_in_one_piece(tmp_path: Path) -> None:
    """As GLM-4's `gate_up_proj`. vLLM only knows its parts gate_proj and up_proj, so each request was refused."""
    worker, name = Worker(), "model.layers.0.gate_up_proj"
    a, b = torch.randn(8, fixtures.INPUT).bfloat16(), torch.randn(2 * fixtures.WIDTHS["up_proj"], 8).bfloat16()
    path = fixtures.write_tensors(tmp_path / "a", {f"{name}.lora_A": a, f"{name}.lora_B": b}, r=8, lora_alpha=8)
    assert worker.stage(1, path) == ["done", "staged"]
    for (own_a, own_b), rows in zip(
        tensors(worker.manager.get_adapter(1).loras[name]), b.split(fixtures.WIDTHS["up_proj"]), strict=True
    ):
        assert own_a is not None
        assert own_b is not None
        assert torch.equal(bits(own_a), bits(a))
        assert torch.equal(bits(own_b), bits(rows))


# --- places --------------------------------------------------------------------------------------------------------
class Worker(stage.StagedAdapters):
    """vLLM's worker with only adapters."""

    def __init__(self) -> None:
        self.model_runner = SimpleNamespace(lora_manager=fixtures.worker_manager(RANK, torch.bfloat16))
        self.device = torch.device("cpu")
        self.manager = self.model_runner.lora_manager._adapter_manager
        self.prepare_places()

    def stage(self, number: int, path: Path) -> list[str]:
        outcome = self.stage_adapter(number, str(path))
        if outcome == ["running"]:
            wait([self._swaps().staging[number]], timeout=PATIENCE)
            outcome = self.poll_adapter(number)
        return outcome

    def place(self, number: int, evict: int = 0) -> list[str]:
        outcome = self.place_adapter(number, evict)
        if outcome == ["running"]:
            wait([self._swaps().placing[number][1]], timeout=PATIENCE)
            outcome = self.poll_adapter(number)[:1]
        return outcome

    def answer(self, ids: list[int]) -> dict[str, torch.Tensor]:
        """Return what the layers add to rows with these adapters, each of different inputs."""
        from vllm.lora.layers import LoRAMapping

        punica = self.manager.punica_wrapper_mapping["language_model"]
        mapping = LoRAMapping(tuple(ids), tuple(ids), is_prefill=True)
        punica.update_metadata(mapping, self.manager.lora_index_to_id, fixtures.PLACES, 100)
        found = {}
        for name, module in self.manager.modules.items():
            generator = torch.Generator().manual_seed(7)
            inputs = torch.randn(len(ids), module.lora_a_stacked[0].shape[-1], generator=generator)
            found[name] = torch.zeros(len(ids), sum(module.output_slices))
            halves = module.lora_a_stacked, module.lora_b_stacked
            punica.add_lora_linear(found[name], inputs, *halves, 1.0, module.output_slices)
        return found


def poison(worker: Worker) -> None:
    """Fill all places with NaN, as an earlier adapter may have left it there."""
    for module in worker.manager.modules.values():
        for half in (*module.lora_a_stacked, *module.lora_b_stacked):
            half.fill_(float("nan"))


def exact(lora: Any, name: str, inputs: torch.Tensor, widths: tuple[int, ...]) -> torch.Tensor:
    """Return what an adapter adds in one layer, as the plain product of its packed halves."""
    weights = lora.loras.get(name)
    pairs = tensors(weights) if weights is not None else [(None, None)] * len(widths)
    parts = [
        torch.zeros(width, dtype=torch.float64) if a is None or b is None else b.double() @ (a.double() @ inputs)
        for (a, b), width in zip(pairs, widths, strict=True)
    ]
    return torch.cat(parts)


@QUICK
@given(seed=st.integers(0, 999), name=st.sampled_from(WAYS), small=st.sampled_from([0, 1 << 30]), data=st.data())
def test_places_answer_as_the_adapters_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, name: str, small: int, data: st.DataObject
) -> None:
    """Three adapters of any ranks and modules, written by the thread or directly."""
    chosen = way(name)
    monkeypatch.setattr("models.chat.vllm.cpu.punica.load", lambda: chosen)
    monkeypatch.setattr(stage, "SMALL", small)
    worker = Worker()
    poison(worker)
    for place in range(fixtures.PLACES):
        modules = data.draw(st.lists(st.sampled_from(fixtures.names()), min_size=1, unique=True))
        ranks = {name: data.draw(st.sampled_from([1, 4, 8, 16])) for name in modules}
        path = fixtures.write_adapter(tmp_path / "adapter", ranks, seed + place, torch.bfloat16)
        assert worker.stage(10 + place, path) == ["done", "staged"]
        assert worker.place(10 + place) == ["done"]
    ids = data.draw(st.lists(st.sampled_from([0, 10, 11, 12]), min_size=1, max_size=9))
    for module_name, found in worker.answer(ids).items():
        module = worker.manager.modules[module_name]
        generator = torch.Generator().manual_seed(7)
        inputs = torch.randn(len(ids), module.lora_a_stacked[0].shape[-1], generator=generator)
        for row, number in enumerate(ids):
            expected = torch.zeros(sum(module.output_slices), dtype=torch.float64)
            if number:
                lora = worker.manager.get_adapter(number)
                expected = exact(lora, module_name, inputs[row].double(), module.output_slices)
            torch.testing.assert_close(found[row].double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_a_place_has_nothing_of_earlier_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(stage, "SMALL", small)
    worker = Worker()
    paths = [fixtures.write_adapter(tmp_path / str(i), ALL, i, torch.bfloat16) for i in range(6)]
    for number in (1, 2, 3, 4):
        assert worker.stage(number, paths[number]) == ["done", "staged"]
    assert worker.stage(5, paths[5]) == ["full"]
    for number in (1, 2, 3):
        assert worker.place(number) == ["done"]
    before = {number: worker.answer([number]) for number in (1, 2, 3)}
    assert worker.place(4) == ["full"]
    assert worker.place(4, 2) == ["done"]
    assert worker.drop_adapter(2) == ["done"]
    for _ in range(3):
        assert worker.stage(5, paths[5]) == ["done", "staged"]
        assert worker.place(5, 1) == ["done"]
        fifth = worker.answer([5])
        assert worker.drop_adapter(5) == ["done"]
        assert worker.place(1) == ["done"]
        for number in (1, 3):
            found = worker.answer([number])
            assert all(torch.equal(found[name], before[number][name]) for name in found)
        assert not all(torch.equal(fifth[name], before[1][name]) for name in fifth)
    assert worker.forget_adapters() == ["done"]
    assert worker.held_adapters() == [[], []]


def test_a_staged_adapter_takes_effect_when_it_is_placed(tmp_path: Path) -> None:
    worker = Worker()
    good = fixtures.write_adapter(tmp_path / "good", ALL, 1, torch.bfloat16)
    for number, path in ((1, good), (2, tmp_path / "nowhere")):
        assert worker.reading_adapter(number) is None
        worker.stage_adapter(number, str(path))
        reading = worker.reading_adapter(number)
        assert reading is not None
        wait([reading], timeout=PATIENCE)
    assert worker.place(1) == ["done"]
    assert worker.held_adapters() == [[1], [1]]
    outcome = worker.place_adapter(2, 1)
    assert (outcome[0], worker.held_adapters()) == ("failed", [[1], []])
    assert worker.place_adapter(2, 0)[0] == "failed"
    assert worker.drop_adapter(2) == ["done"]


def test_an_adapter_staged_before_a_drop_evicts_nothing(tmp_path: Path) -> None:
    """If the drop is refused, vLLM's own table would evict an adapter."""
    worker = Worker()
    paths = [fixtures.write_adapter(tmp_path / str(i), ALL, i, torch.bfloat16) for i in range(6)]
    for number in (1, 2, 3, 4):
        assert worker.stage(number, paths[number]) == ["done", "staged"]
    assert worker.stage_adapter(5, str(paths[5])) == ["full"]
    assert worker.stage_adapter(5, str(paths[5]), 1) == ["running"]
    reading = worker.reading_adapter(5)
    assert reading is not None
    wait([reading], timeout=PATIENCE)
    assert worker.place(5) == ["full"]
    assert worker.held_adapters() == [[1, 2, 3, 4], []]
    assert worker.drop_adapter(2) == ["done"]
    assert worker.place(5) == ["done"]
    assert worker.held_adapters() == [[1, 3, 4, 5], [5]]


def test_a_place_that_is_being_written_has_no_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step reads it before the copy has ended and was polled."""
    monkeypatch.setattr(stage, "SMALL", 0)
    worker = Worker()
    path = fixtures.write_adapter(tmp_path / "a", ALL, 1, torch.bfloat16)
    assert worker.stage(1, path) == ["done", "staged"]
    assert worker.place_adapter(1, 0) == ["running"]
    wait([worker._swaps().placing[1][1]], timeout=PATIENCE)
    assert worker.manager.lora_index_to_id == [None] * fixtures.PLACES
    with pytest.raises(KeyError):
        worker.answer([1])
    assert worker.poll_adapter(1) == ["done", "placed"]
    worker.answer([1])


# --- for a GPU -----------------------------------------------------------------------------------------------------
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, manager: Any) -> list[tuple[int, torch.dtype]]:
    """Let the manager say that its places are on a GPU; return a list that records what would be pinned."""
    allocations: list[tuple[int, torch.dtype]] = []

    def empty(count: int, dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
        if pinned:
            allocations.append((count * dtype.itemsize, dtype))
        return torch.empty(count, dtype=dtype)

    monkeypatch.setattr(read, "_empty", empty)
    manager._adapter_manager.device = SimpleNamespace(type="cuda")
    return allocations


@pytest.mark.parametrize("kept", [("q_proj", "v_proj"), ("o_proj",), tuple(fixtures.WIDTHS)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [torch.bfloat16, torch.float16])
def test_an_adapter_is_read_into_one_pinned_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: tuple[str, ...], dtype: torch.dtype, place: torch.dtype
) -> None:
    """Also an adapter of only q and v, of which vLLM pins nothing. Its values equal vLLM's."""
    ranks = {name: 8 for name in fixtures.names() if name.rpartition(".")[2] in kept}
    path = fixtures.write_adapter(tmp_path / "adapter", ranks, 3, dtype)
    expected = read_adapter(fixtures.worker_manager(RANK, place), 1, str(path)).loras
    worker = fixtures.worker_manager(RANK, place)
    pinned = on_a_gpu(monkeypatch, worker)
    found = read_adapter(worker, 1, str(path)).loras
    halves = [half for weights in found.values() for pair in tensors(weights) for half in pair if half is not None]
    assert [kind for _, kind in pinned] == [torch.uint8 if dtype is place else place]
    assert pinned[0][0] == sum(half.nbytes for half in halves)
    assert len({half.untyped_storage().data_ptr() for half in halves}) == 1
    for name, weights in found.items():
        for pair, expected_pair in zip(tensors(weights), tensors(expected[name]), strict=True):
            for half, other in zip(pair, expected_pair, strict=True):
                assert (half is None) == (other is None)
                if half is not None and other is not None:
                    assert torch.equal(bits(half), bits(other))


def test_on_a_gpu_a_place_takes_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter answers right after the call, without a poll or a thread."""
    monkeypatch.setattr(stage, "SMALL", 0)
    worker = Worker()
    path = fixtures.write_adapter(tmp_path / "a", ALL, 1, torch.bfloat16)
    assert worker.stage(1, path) == ["done", "staged"]
    assert worker.place_adapter(1, 0) == ["running"], "on a CPU"
    wait([worker._swaps().placing[1][1]], timeout=PATIENCE)
    assert worker.poll_adapter(1) == ["done", "placed"]
    before = worker.answer([1])
    assert worker.stage(2, fixtures.write_adapter(tmp_path / "b", ALL, 2, torch.bfloat16)) == ["done", "staged"]
    worker.manager.device = SimpleNamespace(type="cuda")
    assert worker.place_adapter(2, 1) == ["done"]
    assert worker.place_adapter(1, 2) == ["done"]
    worker._swaps().close()
    found = worker.answer([1])
    assert all(torch.equal(found[name], before[name]) for name in found)
