"""The vLLM plug-in except its patches to LoRA: sampling, threads, staged weights, versions, the end of its process."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from adapters.check_process import check
from adapters.jobs import Job
from adapters.types import Base
from models.chat.vllm import plugin, variables
from models.chat.vllm.adapters import read
from models.chat.vllm.cuda import device_ids, sleep_memory
from models.process_control import has_ended
from registry.bounds import Bounds
from tests.contract.vllm.stock import stock
from tests.eventually import eventually
from tests.unit.adapters import makers

pytestmark = pytest.mark.real


def test_ranks_of_a_stored_adapter_take_few_regular_expressions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM uses peft's search; one expression for every two modules took 0.2 s for an 8B model."""
    ranks = {"q_proj": 8, "k_proj": 4, "v_proj": 4, "o_proj": 2, "gate_proj": 8, "up_proj": 2, "down_proj": 3}
    weights = makers.tensors(8)
    for key, value in weights.items():
        rank = ranks[key.split(".")[-3]]
        weights[key] = (value[:rank] if "lora_A" in key else value[:, :rank]).contiguous()
    settings = {"rank_pattern": ranks, "alpha_pattern": {name: 2 * rank for name, rank in ranks.items()}}
    makers.write_adapter(tmp_path / "made", weights=weights, settings=settings)
    base, out = Base("small", makers.write_base(tmp_path / "base"), max_rank=16), tmp_path / "stored"
    out.mkdir()
    assert check(Job(source=tmp_path / "made", base=base, bounds=Bounds(), out=out)).outcome == "fit"
    helper = stock("vllm.lora.peft_helper")
    stored = helper.PEFTHelper.from_dict(json.loads((out / "adapter_config.json").read_text()))
    match, tried = helper.re.match, list[str]()
    monkeypatch.setattr(helper.re, "match", lambda regex, name: tried.append(name) or match(regex, name))
    names = {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in weights}
    assert len(names) == len(weights) / 2 > 7
    for name in names:
        assert stored.get_rank_and_scaling(name) == (ranks[name.rpartition(".")[2]], 1.0), name
    lower = len(set(ranks.values())) - 1
    assert len(tried) <= len(names) * lower * 2


def test_vllm_itself_compiles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that counts ranks of logprobs, which a slot never compiles (test_prewarm.py).

    This takes 8 to 15 s on a CPU at the first request with logprobs.
    """
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    count = stock("vllm.v1.sample.ops.logprobs").batched_count_greater_than
    assert hasattr(count, "_torchdynamo_orig_callable")


def test_compute_threads_are_set_before_vllm_makes_that_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    before, set_threads = torch.get_num_threads(), torch.set_num_threads
    monkeypatch.setenv(variables.THREADS, "1")
    try:
        torch.set_num_threads(3)
        monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # as vLLM's CPU worker does
        plugin._bound_threads()
        assert torch.get_num_threads() == 3, "after this, the number can no longer be set"
        monkeypatch.setattr(torch, "set_num_threads", set_threads)
        plugin._bound_threads()
        assert torch.get_num_threads() == 1
    finally:
        set_threads(before)


def _layer(places: int = 2, rank: int = 4, width_in: int = 6, width_out: int = 8) -> Any:
    return SimpleNamespace(
        lora_a_stacked=(torch.zeros(places, 1, rank, width_in),),
        lora_b_stacked=(torch.zeros(places, 1, width_out, rank),),
    )


def _pair(a: torch.Tensor | None, b: torch.Tensor | None) -> Any:
    return SimpleNamespace(lora_a=a, lora_b=b)


@pytest.mark.parametrize(
    ("pair", "word"),
    [
        (_pair(torch.ones(4, 6), torch.ones(8, 4)), None),
        (_pair(torch.ones(2, 6), torch.ones(8, 2)), None),
        (_pair(torch.ones(4, 5), torch.ones(8, 4)), "made for"),
        (_pair(torch.ones(4, 6), torch.ones(9, 4)), "made for"),
        (_pair(torch.ones(4, 6), torch.ones(8, 3)), "rank"),
        (_pair(torch.ones(5, 6), torch.ones(8, 5)), "rank"),
        (_pair(torch.ones(4, 6), None), "missing"),
        (_pair(torch.full((4, 6), float("nan")), torch.ones(8, 4)), "finite"),
        (_pair(torch.ones(4, 6), torch.full((8, 4), float("inf"))), "finite"),
        (_pair([torch.ones(4, 6)] * 2, [torch.ones(8, 4)] * 2), "parts"),
    ],
)
def test_staged_weights_must_fit_the_layers(pair: Any, word: str | None) -> None:
    faults = read.faults_of({"layer": pair}, {"layer": _layer()}, 4)
    assert bool(faults) == (word is not None)
    assert not word or word in faults[0]


def test_no_layer_or_no_weights_are_faults() -> None:
    assert read.faults_of({}, {}, 4)
    assert read.faults_of({"other": _pair(torch.ones(4, 6), torch.ones(8, 4))}, {"layer": _layer()}, 4)


def test_a_plain_vllm_is_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[str] = []
    monkeypatch.setattr(plugin, "_patch_all", lambda: applied.append("all"))
    monkeypatch.delenv(variables.ACTIVE, raising=False)
    plugin.register()
    assert not applied
    monkeypatch.setenv(variables.ACTIVE, "1")
    plugin.register()
    assert applied == ["all"]


def test_an_unchecked_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setenv(variables.ACTIVE, "1")
    monkeypatch.setattr(plugin, "_patch_all", lambda: pytest.fail("patched"))
    monkeypatch.setattr(vllm, "__version__", "0.99.1")
    with pytest.raises(RuntimeError, match=r"0\.99\.1"):
        plugin.register()


ORPHANS = """
import multiprocessing, os, signal, time
from models.chat.vllm.plugin import enter
def child(entered):
    if entered:
        enter()
    os.write(1, f"{int(entered)} {os.getpid()}\\n".encode())  # at once: two children write here
    os.kill(os.getpid(), signal.SIGSTOP)
for entered in (False, True):
    multiprocessing.get_context("fork").Process(target=child, args=(entered,), name="EngineCore").start()
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fork and /proc")
def test_the_engine_process_ends_with_its_slot_even_when_it_is_stopped() -> None:
    before = multiprocessing.active_children()  # of engines in other tests
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    stated = dict(parent.stdout.readline().split() for _ in range(2))
    stock_child, child = psutil.Process(int(stated["0"])), psutil.Process(int(stated["1"]))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    try:
        eventually(lambda: has_ended(child))
        assert stock_child.is_running(), "without our patch it survives"
        assert stock_child.status() != psutil.STATUS_ZOMBIE
    finally:
        stock_child.kill()
    assert set(multiprocessing.active_children()) <= set(before)


def test_progress_bars_are_not_in_the_servers_log() -> None:
    """No setting of vLLM's own turns off the one for CUDA graphs."""
    environment = {
        name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"
    }  # set by an earlier engine
    code = "from models.chat.vllm import prewarm\nprewarm.environment()\nimport tqdm\nlist(tqdm.tqdm(range(3)))"
    run = partial(subprocess.run, capture_output=True, text=True, check=True, env=environment)
    assert "3/3" not in run([sys.executable, "-c", code]).stderr
    assert "3/3" in run([sys.executable, "-c", code.split("\n", 2)[2]]).stderr


def test_variables_for_a_vllm_of_ones_own_do_not_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a file for the log, for example, vLLM would refuse to start, because it may not configure ours."""
    from vllm.config.logging import LoggingConfig

    from models.chat.vllm import prewarm

    monkeypatch.setattr(os, "environ", {**os.environ, **dict.fromkeys(prewarm.OTHERS, "1"), "VLLM_PLUGINS": "mine"})
    assert LoggingConfig().pylogging_config_file == "1"
    prewarm.environment()
    assert not {*prewarm.OTHERS} & os.environ.keys()
    assert LoggingConfig().pylogging_config_file is None
    prewarm.environment()
    assert os.environ["VLLM_PLUGINS"] == "mine,roundhouse"


class Card:
    """A device shared with a model that loads 50 GB during a sleep.

    freed: whether the sleep frees everything.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, freed: bool) -> None:
        from vllm.device_allocator.cumem import CuMemAllocator

        self.parts = [SimpleNamespace(is_asleep=False) for _ in range(2)]
        self.free, self.freed = 80 << 30, freed
        allocator = SimpleNamespace(pointer_to_data=dict(enumerate(self.parts)))
        monkeypatch.setattr(CuMemAllocator, "instance", allocator)
        module = stock("vllm.v1.worker.gpu_worker")
        memory = SimpleNamespace(synchronize=lambda: None, get_memory_info=lambda: (self.free, 141 << 30))
        monkeypatch.setattr(module, "torch", SimpleNamespace(accelerator=memory))
        self.worker_class = module.Worker
        self.sleep_mode_backend = self
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(enable_nccl_comm_suspend=False))

    def suspend(self, level: int) -> None:
        assert level == 1
        self.free -= 22 << 30
        for part in self.parts if self.freed else self.parts[1:]:
            part.is_asleep = True


def test_an_engine_sleeps_while_another_one_loads_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM counts the other's memory as its own failure to free, which would end the engine."""
    card = Card(monkeypatch, freed=True)
    monkeypatch.setattr(card.worker_class, "sleep", card.worker_class.sleep)  # undoes the patch
    with pytest.raises(AssertionError):
        card.worker_class.sleep(card, 1)
    sleep_memory.patch(card.worker_class)
    card.worker_class.sleep(card, 1)
    assert all(part.is_asleep for part in card.parts)


def test_a_sleep_that_frees_too_little_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch, freed=False)
    monkeypatch.setattr(card.worker_class, "sleep", card.worker_class.sleep)
    sleep_memory.patch(card.worker_class)
    with pytest.raises(AssertionError):
        card.worker_class.sleep(card, 1)


def test_what_a_sleep_keeps_is_what_vllm_copies_to_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host memory that is pinned for more is pinned in vain."""
    import torch
    from vllm import device_allocator
    from vllm.device_allocator.cumem import CuMemAllocator
    from vllm.device_allocator.sleep_mode_backend import CuMemBackend

    copied: list[str] = []
    allocator = SimpleNamespace(sleep=lambda offload_tags: copied.extend(offload_tags), pointer_to_data={})
    monkeypatch.setattr(device_allocator, "get_mem_allocator_instance", lambda: allocator)
    CuMemBackend().suspend(1)
    for number, tag in enumerate([*copied, "kv_cache", "workspace"]):
        allocator.pointer_to_data[number] = SimpleNamespace(handle=(0, 3 << number), tag=tag)
    monkeypatch.setattr(CuMemAllocator, "instance", allocator)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert sleep_memory.kept_blocks() == [4 << number for number in range(len(copied))]


class Driver:
    """NVML with two GPUs, the second with MIG parts, whose handles begin at 10."""

    NVMLError = NVMLError_NotFound = NVMLError_GpuIsLost = NVMLError_LibraryNotFound = LookupError
    uuids = ("GPU-aaaa-1", "GPU-bbbb-2")

    def nvmlInit(self) -> None:
        """pynvml's name."""

    nvmlShutdown = nvmlInit

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.uuids[handle]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        whole = {**{uuid: number for number, uuid in enumerate(self.uuids)}, "MIG-cccc-3": 13}
        if uuid not in whole:
            raise LookupError("Not Found")
        return whole[uuid]

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle % 10

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:
        assert handle >= 10
        return 1


def test_a_number_in_cuda_visible_devices_is_not_looked_up_in_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.nvml.index", lambda word: pytest.fail(f"looked up {word}"))
    platform = type("Platform", (), {})
    device_ids.patch(platform)
    assert platform.device_control_id_to_physical_device_id("7") == 7  # type: ignore[attr-defined]


def test_cuda_visible_devices_may_name_gpus_in_each_way_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", types.ModuleType("the CUDA build's kernels"))
    monkeypatch.setitem(sys.modules, "pynvml", Driver())  # type: ignore[arg-type]
    module = stock("vllm.platforms.cuda")
    monkeypatch.setattr(module, "pynvml", Driver())

    def numbers(*words: str) -> list[int]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(words))
        return [module.NvmlCudaPlatform.device_id_to_physical_device_id(number) for number in range(len(words))]

    assert numbers("MIG-cccc-3") == [3], "vLLM would look for a fourth GPU"
    with pytest.raises(LookupError):
        numbers("GPU-bb")
    device_ids.patch(module.NvmlCudaPlatform)
    assert numbers("MIG-cccc-3") == [1]
    assert numbers("GPU-bb", "0", "GPU-aaaa-1") == [1, 0, 0]
