"""What vLLM is told on a GPU."""

import asyncio
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat import devices, processes, settings
from models.chat.vllm import core, launch, prewarm, variables
from tests.unit.registry.makers import recipe


def words(device: str, **flags: object) -> list[str]:
    given = recipe("m", engine={"name": "vllm", "flags": flags}, memory={"kv_cache": "1GiB"}, dtype="bfloat16")
    return list(settings._settings(given, Path("/weights"), device))


def test_a_card_need_not_be_empty_for_a_start() -> None:
    stated = words("cuda:0")
    assert stated[stated.index("--gpu-memory-utilization") + 1] == devices.SHARE
    assert "--no-enable-flashinfer-autotune" in stated
    assert "--enable-sleep-mode" in stated
    assert not {"--gpu-memory-utilization", "--cudagraph-capture-sizes"} & set(words("cpu"))


@pytest.mark.parametrize("flag", ["enforce_eager", "enforce-eager", "cudagraph_capture_sizes", "speculative_config"])
def test_a_recipe_that_has_its_own_graphs_keeps_them(flag: str) -> None:
    assert "--cudagraph-capture-sizes" in words("cuda:0")
    assert "--cudagraph-capture-sizes" not in words("cuda:0", **{flag: True})


@given(requests=st.integers(1, 4096))
def test_every_batch_of_single_tokens_has_a_graph_that_it_half_fills(requests: int) -> None:
    sizes = devices.capture_sizes(requests)
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= 1
    assert sizes[-1] == min(2 * requests, 512)
    assert min(requests, 512) in sizes
    for batch in range(1, min(requests, 512) + 1):
        assert next(size for size in sizes if size >= batch) < 2 * batch
    assert len(sizes) <= len(devices.SIZES) + 2


def test_nothing_is_compiled_for_the_sampler_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    prewarm.environment()
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "1"
    prewarm.environment()
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "1"


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (ValueError("Free memory on device cuda:0 (0.5/79.2 GiB) on startup is less than desired"), 1),
        (RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:145"), 1),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 1),
        (MemoryError(), 1),
        (ValueError("To serve at least one request with the model's max seq len"), 0),
    ],
)
def test_a_start_that_ran_out_of_memory_says_so(
    error: Exception, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variables.CAUSE, str(tmp_path / "cause"))
    core._tell_cause(error)
    reported = json.loads((tmp_path / "cause").read_text())
    assert reported[0] == memory
    assert str(error) in reported[1]


async def test_the_engine_runs_only_when_its_own_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process of vLLM's, such as one that looks at a model's class, is not it."""
    running = [SimpleNamespace(name="SpawnProcess-1")]
    monkeypatch.setattr("models.chat.processes.multiprocessing.active_children", lambda: list(running))
    starting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(processes.child_or_end(starting))  # type: ignore[arg-type]
    done, _ = await asyncio.wait({waiting}, timeout=0.2)
    assert not done
    running.append(SimpleNamespace(name="EngineCore"))
    await asyncio.wait_for(waiting, 200)


@pytest.mark.parametrize(("on_cpu", "known"), [(True, ["A", "B"]), (False, ["A"])])
def test_an_imported_class_is_not_inspected_in_another_process(
    on_cpu: bool, known: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU another model's file may touch CUDA, so it is left to vLLM."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["A", "B", "C"]}))
    places = {"A": ("json", "JSONDecoder"), "B": ("colorsys", "ONE_THIRD")}
    registered: dict[str, object] = {}
    modules = {
        "vllm.model_executor.models": SimpleNamespace(
            ModelRegistry=SimpleNamespace(register_model=registered.__setitem__)
        ),
        "vllm.platforms": SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: on_cpu)),
    }
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setattr(launch, "import_module", lambda name: modules.get(name) or import_module(name))
    monkeypatch.setattr("models.chat.vllm.launch.source.class_of", places.get)
    launch._know_architecture(tmp_path)
    assert sorted(registered) == known
    assert registered["A"] is json.JSONDecoder
