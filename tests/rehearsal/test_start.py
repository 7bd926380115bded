"""Starts on an H100 as far as possible without one: with a fake driver, until EngineCore needs the GPU.

With vLLM's CPU build switched to the CUDA platform (the short form), and with the CUDA build if
scripts/install-cuda-rehearsal has installed it (the long form).
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.chat import settings
from tests.rehearsal.card import H100, LLAMA, LLAMA_70B, QWEN_32B, ROOT, calls, chat_model, recipe, variables

pytestmark = pytest.mark.real


RECIPES = {"single-gpu-80gb/llama-8b": LLAMA, "h200/llama-8b": LLAMA, "h200/qwen-32b": QWEN_32B}


def test_gpu_recipes_get_as_far_as_the_gpu(python: Path, driver: Path, tmp_path: Path) -> None:
    """Only EngineCore touches CUDA, after its fork: a process that has touched CUDA cannot be forked.

    CUDA_VISIBLE_DEVICES has the beginning of the GPU's UUID, which is enough for CUDA, but not for vLLM by itself.
    """
    command = [str(python), "-m", "tests.rehearsal.probe"]
    for number, (name, config) in enumerate(RECIPES.items()):
        folder = tmp_path / str(number) / "model"
        folder.parent.mkdir()
        chat_model(folder, config)
        command += [f"recipes/{name}.yaml", str(folder)]
    env = variables(driver, tmp_path) | {"CUDA_VISIBLE_DEVICES": "GPU-00000000"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stderr[-3000:]
    made = calls(tmp_path)
    assert not [call for call, _ in made if call.startswith("cu")], "slots are forks of this process, too"
    opened, closed = ([call for call, _ in made].count(name) for name in ("nvmlInit", "nvmlShutdown"))
    assert opened == closed
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    for number, (name, line) in enumerate(zip(RECIPES, lines, strict=True)):
        check_start(name, json.loads(line), calls(tmp_path / str(number)), short=python == Path(sys.executable))


def check_start(name: str, found: dict[str, Any], made: list[tuple[str, int]], *, short: bool) -> None:
    """Check what a slot has found, and its and EngineCore's calls of the driver."""
    requested = recipe(name)
    places = requested.memory.adapters
    slot = found.pop("pid")
    assert found == {
        "gpu": "NVIDIA H100 80GB HBM3",
        "driver": "580.65.06",
        "second_runner": True,
        "share": float(settings.SHARE),
        "kv_cache": requested.memory.kv_cache,
        "flashinfer_sampler": False,
        "autotune": False,
        "sizes": settings.capture_sizes(requested.batching.sequences, requested.batching.max_tokens),
        "max_model_len": requested.context_length,
        "long_prefill": 2048,
        "warm_up": [5, 16, 131, 132, 525, 526],
        "executor": "uni",
        "worker": "vllm.v1.worker.gpu_worker.Worker",
        "extension": "models.chat.vllm.adapters.stage.StagedAdapters" if places.device else "",
        "asked_to_sleep": True,
        "lora": [places.device, places.max_rank] if places.device else None,
        "inspected": [],
        "runner_loads_adapters_as_the_first_does": True,
        "core_is_ours": "models.chat.vllm.core",
        "intake_is_ours": "models.chat.vllm.media.sending",
        "metadata_is_ours": "models.chat.vllm.adapters.metadata",
        "groups_are_ours": "models.chat.vllm.adapters.active_counts",
        "manager_is_ours": "models.chat.vllm.adapters.manager",
        "sleep_is_ours": "models.chat.vllm.cuda.sleep_memory",
        "number_of_its_gpu": 0,
        "start": {
            "told": "vLLM's engine did not start: "
            + (
                "AssertionError: DP adjusted local rank 0 is out of bounds for 0 devices."  # from torch without CUDA
                if short
                else "RuntimeError: No CUDA GPUs are available"
            ),
            "code": "engine_failed",
            "way": "fork",
        },
    }, name
    touched = [process for call, process in made if call == "cuInit"]
    assert slot not in touched
    assert len(set(touched)) == (0 if short else 1)
    opened, closed = made.count(("nvmlInit", slot)), made.count(("nvmlShutdown", slot))
    assert opened == closed > 0, "a fork must not inherit it"


def test_on_four_gpus_only_the_workers_touch_cuda(cuda_build: Path, driver: Path, tmp_path: Path) -> None:
    """Workers are forks of EngineCore, which is a fork of the slot, so neither may have touched CUDA."""
    chat_model(tmp_path / "model", LLAMA_70B)
    command = [str(cuda_build), "-m", "tests.rehearsal.probe", "recipes/node-8x80gb/llama-70b.yaml"]
    env = variables(driver, tmp_path, cards=8)
    env["CUDA_VISIBLE_DEVICES"] = seen = ",".join(f"GPU-00000000-0000-0000-0000-{n:012}" for n in range(5, 9))
    done = subprocess.run(
        [*command, str(tmp_path / "model")], cwd=ROOT, env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (found["executor"], found["asked_to_sleep"], found["start"]["way"]) == ("mp", False, "fork")
    made = calls(tmp_path)
    touched = {process for call, process in made if call == "cuInit"}
    assert len(touched) == 4, made
    assert found["pid"] not in touched
    assert {call for call, _ in made if call.startswith("sees ")} == {f"sees {seen}"}


def test_the_log_shows_any_touch_of_cuda(cuda_build: Path, driver: Path, tmp_path: Path) -> None:
    """Otherwise a log without such a line would prove nothing."""
    touch = "import contextlib, torch\nwith contextlib.suppress(RuntimeError):\n    torch.cuda.init()"
    subprocess.run([str(cuda_build), "-c", touch], env=variables(driver, tmp_path), check=True)
    assert [call for call, _ in calls(tmp_path) if call.startswith("cu")] == ["cuInit"]


def test_speech_finds_its_cublas(cuda_build: Path, driver: Path, tmp_path: Path) -> None:
    """The cuBLAS that CTranslate2 opens by name is a different one from torch's."""
    load = "import ctypes\nfrom models.speech import libraries\nlibraries.load_cublas()\nctypes.CDLL('libcublas.so.12')"
    env = variables(driver, tmp_path)
    subprocess.run([str(cuda_build), "-c", load], cwd=ROOT, env=env, check=True)
    without = subprocess.run([str(cuda_build), "-c", load.replace("libraries.load_cublas()", "")], cwd=ROOT, env=env)
    assert without.returncode, "the system has a cuBLAS already, so this test proves nothing here"


PINNED = """
import inspect, torch
from torch._C import _cudart
from models.chat.vllm.adapters import arena
assert torch.cuda.CudaError.__mro__[1] is RuntimeError
assert callable(_cudart.cudaHostRegister)
torch.cuda.check_error(_cudart.cudaError.success)
assert list(inspect.signature(torch.cuda.Event.query).parameters) == ["self"]
"""


def test_pinning_finds_the_names_that_it_uses(cuda_build: Path, driver: Path, tmp_path: Path) -> None:
    """The arena of adapters uses names of the CUDA runtime."""
    subprocess.run([str(cuda_build), "-c", PINNED], cwd=ROOT, env=variables(driver, tmp_path), check=True)


TUNED = """
from triton.backends import backends
backends["nvidia"].driver.is_active = staticmethod(lambda: True)  # as on a GPU
import torch
from triton.runtime.errors import OutOfResources
from vllm.lora.ops.triton_ops import utils
from benchmarks.gpu import tune_lora, tuning
utils.async_tensor_h2d = lambda values, dtype, device: torch.tensor(values, dtype=dtype)  # otherwise it pins memory
assert issubclass(OutOfResources, tune_lora.kernel_faults())
tune_lora.DEVICE = "cpu"
timer = tune_lora.CudaTimer(3)
for kind in ("SHRINK", "EXPAND_TRUE", "EXPAND_FALSE"):
    for inputs, slices in ((64, 1), (96, 1), (64, 2)):
        sides = (inputs, 16) if kind == "SHRINK" else (16, inputs)
        signature = tuning.Signature(kind, slices, *sides)
        timer._call(signature, 5, max(tuning.ACTIVE))  # of which there are only as many as places
        run, output, expected = timer._call(signature, 5, 2)
        for config in tuning.candidates(kind, 16)[::100]:
            output.zero_()
            with timer._with(signature, config):
                run()
            assert timer._is_like(output, expected), (signature, config)
        assert output.any()
"""


def test_the_tuner_calls_vllms_kernels_correctly(cuda_build: Path, driver: Path, tmp_path: Path) -> None:
    """Triton's interpreter runs them on the CPU."""
    env = {**variables(driver, tmp_path), "TRITON_INTERPRET": "1"}
    subprocess.run([str(cuda_build), "-c", TUNED], cwd=ROOT, env=env, check=True)


ENCODERS = """
import inspect, torch
from torch.nn.attention.varlen import varlen_attn
from models.text.unpadded import attention, graphs
known = list(inspect.signature(varlen_attn).parameters)
assert known[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
assert {"scale", "window_size", "enable_gqa"} <= set(known)
assert {"pool", "stream", "capture_error_mode"} <= set(inspect.signature(torch.cuda.graph.__init__).parameters)
assert list(inspect.signature(torch.cuda.CUDAGraph.replay).parameters) == ["self"]
names = "graph_pool_handle Stream current_stream stream synchronize empty_cache memory_reserved"
for name in names.split():
    assert callable(getattr(torch.cuda, name)), name
graphs.CudaCapture("cuda:0")
kernel = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_flash_attention_forward", "CUDA")
assert kernel == (torch.version.cuda is not None), "torch.nn.attention.varlen calls it"
"""


def test_encoders_without_padding_find_the_names_that_they_use(python: Path, driver: Path, tmp_path: Path) -> None:
    """FlashAttention for sequences of different lengths, and CUDA graphs."""
    subprocess.run([str(python), "-c", ENCODERS], cwd=ROOT, env=variables(driver, tmp_path), check=True)


VALUELESS = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from models.text.tokens import Ids
from models.text.unpadded import attention
from models.text.unpadded.buckets import Bucket
from models.text.unpadded.network import UnpaddedNetwork
from models.text.unpadded.packing import pack
from tests.contract.text.unpadded.networks import CONFIGS, network

def on_gpu(tensor):
    dtype = torch.float16 if tensor.is_floating_point() else tensor.dtype
    return torch.empty(tensor.shape, dtype=dtype, device="cuda")

attention.register()
for name in CONFIGS:
    model = network(name)
    model.set_attn_implementation(attention.NAME)
    unpadded = UnpaddedNetwork(model, "cuda:0", name == "bert")
    packing = pack([Ids([5] * length) for length in (5, 64, 1, 40)], unpadded._first_position, Bucket(128, 6, 64))
    with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True):
        for module in model.modules():
            for values in (module._parameters, module._buffers):
                values.update({key: on_gpu(tensor) for key, tensor in values.items() if tensor is not None})
        packing = packing._replace(rows=on_gpu(packing.rows), boundaries=on_gpu(packing.boundaries))
        states = unpadded._compute(packing, 64)
        assert (states.shape[0], states.dtype, states.device.type) == (128, torch.float16, "cuda"), name
"""


def test_steps_of_encoders_without_padding_wait_for_no_value(cuda_build: Path, driver: Path, tmp_path: Path) -> None:
    """Otherwise none could be captured as a graph. These tensors have no values, so reading one raises."""
    subprocess.run([str(cuda_build), "-c", VALUELESS], cwd=ROOT, env=variables(driver, tmp_path), check=True)


def test_a_second_model_starts_on_a_gpu_that_is_nearly_full() -> None:
    from vllm.v1.worker.utils import request_memory

    card = SimpleNamespace(total_memory=H100, free_memory=H100 // 50, device_="cuda:0")
    with pytest.raises(ValueError, match="Free memory on device"):
        request_memory(card, SimpleNamespace(gpu_memory_utilization=0.92))
    request_memory(card, SimpleNamespace(gpu_memory_utilization=float(settings.SHARE)))
