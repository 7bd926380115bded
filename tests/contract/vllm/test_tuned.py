"""Configurations of the LoRA kernels, shipped ones and those that the tuner writes, read by vLLM's own loader."""

import json
import os
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import tuning
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.tune_lora import KINDS, KINDS_BESIDE, kinds
from benchmarks.gpu.tuning import Config, Search, Signature
from models.chat.vllm import core, launch, tuned
from tests.contract.vllm.stock import stock

pytestmark = pytest.mark.real
CARD, PLACES, RANK = "NVIDIA H100 80GB HBM3", 24, 16
SHIPPED = sorted(tuned.FOLDER.glob("*.json"))
KEYS = {
    "SHRINK": {"block_m", "block_n", "block_k", "split_k", "num_warps", "num_stages", "num_ctas"},
    "EXPAND": {"block_m", "block_n", "block_k", "num_warps", "num_stages", "num_ctas"},
}
"""The keys of a configuration that vLLM's kernels read."""


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's module that chooses a configuration, on the GPU CARD."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: CARD)
    return stock("vllm.lora.ops.triton_ops.utils")


def configs(loader: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int, int, int, int], Config]:
    """Return vLLM's configurations for all sizes of steps and layers, by kernel, slices, tokens, inputs and outputs."""
    monkeypatch.setenv(tuned.VARIABLE, str(folder))
    found = {}
    for slices, size, width, places in product(
        (1, 2, 3, 5, 7), (1, 3, 90, 512, 700, 8192), (64, 4096, 151936), (2, 25, 65)
    ):
        found["SHRINK", slices, size, width, places] = loader.get_lora_op_configs(
            "shrink", places, size, width, 8, slices
        )
        found["EXPAND", slices, size, width, places] = loader.get_lora_op_configs(
            "expand", places, size, width, 8, slices, True
        )
    return found


def timed(signature: Signature, size: int, active: int, config: Config) -> float | None:
    """Return a made-up time: few tokens are fastest with small blocks and four warps; eight warps fail."""
    best = 16 if size < 128 else 32
    if config["num_warps"] == 8:
        return None
    return abs((config["block_m"] or 0) - best) + abs((config["num_warps"] or 0) - 4) + (config["block_k"] or 0) / 1e6


def searched(seconds: float) -> Search:
    """Run a search with this time limit, in which each kernel takes a second."""
    times = iter(range(10**9))
    search = Search(lambda *one: (next(times), timed(*one))[1], seconds, clock=lambda: float(next(times)))
    search.run(tuning.signatures(SHAPES["8b"], RANK, KINDS), RANK)
    return search


def test_the_best_candidates_are_written_and_vllm_uses_them(
    loader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = searched(1e9)
    files = list(tuning.write(search, KINDS, PLACES, CARD, tmp_path))
    assert [file.name for file in files] == [
        "NVIDIA_H100_80GB_HBM3_SHRINK.json",
        "NVIDIA_H100_80GB_HBM3_EXPAND_TRUE.json",
    ]
    assert not search.left_out
    for (kernel, slices, size, width, _), config in configs(loader, tmp_path, monkeypatch).items():
        assert KEYS[kernel] <= config.keys(), (kernel, slices, size, width)
        assert config["block_m"] == (16 if size < 96 else 32)
        assert config["num_warps"] == 4
    assert list(tuned.sizes(CARD)) == list(tuning.SIZES)


async def test_the_warm_up_knows_the_sizes_by_the_name_in_which_vllm_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker asks CUDA, as vLLM does: the driver's name of a part of a GPU (MIG) may be another."""
    list(tuning.write(searched(1e9), KINDS, PLACES, CARD, tmp_path))
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: CARD)

    class Core:
        def collective_rpc(self, call: Any) -> list[Any]:
            return [call(self)]

        async def call_utility_async(self, method: str, name: str, arguments: list[Any]) -> Any:
            return core.CALLS[name](self, *arguments)

    engine = SimpleNamespace(engine_core=Core())
    assert list(await launch.tuned_sizes(engine)) == list(tuning.SIZES)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert list(await launch.tuned_sizes(engine)) == []


@pytest.mark.parametrize(("switch", "expected"), [("0", KINDS), ("1", KINDS_BESIDE)])
def test_kernels_that_run_beside_the_bases_are_tuned_if_vllm_runs_them(
    switch: str, expected: tuple[str, ...], loader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_LORA_ENABLE_DUAL_STREAM", switch)
    assert kinds() == expected
    search = Search(timed, 1e18)
    search.run([Signature(kind, 1, 4096 if kind == "SHRINK" else RANK, RANK) for kind in expected], RANK)
    assert len(list(tuning.write(search, kinds(), PLACES, CARD, tmp_path))) == 2
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path))
    assert loader.get_lora_op_configs("expand", PLACES + 1, 64, RANK, RANK, 1, switch == "0")["num_warps"] == 4


@pytest.mark.parametrize("seconds", [0.0, 500.0, 3000.0])
def test_a_search_that_is_cut_short_leaves_no_file_that_ends_an_engine(
    loader: Any, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = searched(seconds)
    files = list(tuning.write(search, KINDS, PLACES, CARD, tmp_path))
    assert search.left_out
    assert bool(files) is bool(search.best)
    for file in files:
        assert_whole(json.loads(file.read_text()))
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path))
    for (kernel, *_), config in configs(loader, tmp_path, monkeypatch).items():
        assert KEYS[kernel] <= config.keys()


def test_sizes_whose_kernels_must_be_compiled_come_last() -> None:
    whole = searched(1e18)
    for seconds in (8_000.0, 10_000.0, 12_000.0):
        cut = searched(seconds)
        assert 0 < len(cut.left_out) < len(whole.best)
        assert {size for _, size in cut.best} >= set(tuning.FIRST)
        if {1, 8} & {size for _, size in cut.best}:
            assert {size for _, size in cut.left_out} <= {1, 8}


def test_a_model_without_this_number_of_slices_uses_the_nearest() -> None:
    one = Search(timed, 1e18)
    one.run([Signature("SHRINK", 1, 4096, RANK)], RANK)
    table = tuning.table_of(one, "SHRINK", PLACES)
    assert table is not None
    assert_whole(table)
    assert table["25"]["5"] == table["25"]["3"] == table["25"]["1"], "Mamba-2's in_proj has five"


def assert_whole(table: dict[str, Any]) -> None:
    for by_slices in table.values():
        assert by_slices.keys() == set(map(str, range(1, 9)))
        for by_size in by_slices.values():
            assert by_size
            assert all(outputs for by_inputs in by_size.values() for outputs in by_inputs.values())


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_vllm_reads_each_file_that_ships(file: Path, loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_whole(json.loads(file.read_text()))
    card = file.name.removesuffix(".json").removesuffix("_SHRINK").removesuffix("_TRUE").removesuffix("_EXPAND")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: card)
    for (kernel, *_), config in configs(loader, tuned.FOLDER, monkeypatch).items():
        assert KEYS[kernel] <= config.keys()
    assert max(tuned.sizes(card)) <= max(tuning.SIZES), "the warm-up compiles no more"


def test_a_gpu_without_a_file_has_no_sizes_and_the_folder_is_used_only_with_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(tuned.VARIABLE, raising=False)
    monkeypatch.setattr(tuned, "FOLDER", tmp_path)
    assert list(tuned.sizes("another card")) == []
    tuned.use()
    assert tuned.VARIABLE not in os.environ
    (tmp_path / tuned.file_name(CARD, "SHRINK")).write_text("{}")
    tuned.use()
    assert os.environ[tuned.VARIABLE] == str(tmp_path)
    monkeypatch.setenv(tuned.VARIABLE, "/elsewhere")
    tuned.use()
    assert os.environ[tuned.VARIABLE] == "/elsewhere"
