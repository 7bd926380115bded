"""vLLM's arguments and environment on a GPU."""

import asyncio
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat import asgi, processes, settings, warmup
from models.chat.vllm import core, launch, prewarm, variables
from models.chat.vllm.steps import budget
from registry.errors import Unfit
from registry.recipes.definition import Recipe
from registry.recipes.loading import load_recipes
from tests.contract import test_sleep_gpu
from tests.system.serving import ROOT
from tests.unit.registry.makers import recipe


def words(device: str, **flags: object) -> list[str]:
    given = recipe("m", engine={"name": "vllm", "flags": flags}, memory={"kv_cache": "1GiB"}, dtype="bfloat16")
    return list(settings._settings(given, Path("/weights"), device))


def test_a_gpu_need_not_be_empty_for_a_start() -> None:
    stated = words("cuda:0")
    assert stated[stated.index("--gpu-memory-utilization") + 1] == settings.SHARE
    assert "--no-enable-flashinfer-autotune" in stated
    assert "--enable-sleep-mode" in stated
    assert not {"--gpu-memory-utilization", "--cudagraph-capture-sizes"} & set(words("cpu"))


def test_the_chat_model_that_is_tested_on_a_gpu_fits_one() -> None:
    """That test runs only on a GPU, so nothing else would notice."""
    folder = Path("/weights")
    assert "--enable-sleep-mode" in list(settings._settings(test_sleep_gpu.chat_recipe(folder), folder, "cuda:0"))


@pytest.mark.parametrize("flag", ["enforce_eager", "enforce-eager", "cudagraph_capture_sizes", "speculative_config"])
def test_a_recipes_own_graphs_are_kept(flag: str) -> None:
    assert "--cudagraph-capture-sizes" in words("cuda:0")
    assert "--cudagraph-capture-sizes" not in words("cuda:0", **{flag: True})


def test_another_kind_of_graph_keeps_the_sizes_unless_it_has_its_own() -> None:
    full = words("cuda:0", compilation_config='{"cudagraph_mode": "FULL"}')
    assert "--cudagraph-capture-sizes" in full
    own = words("cuda:0", compilation_config='{"cudagraph_capture_sizes": [1, 2]}')
    assert "--cudagraph-capture-sizes" not in own


def test_several_gpus_run_without_a_fusion_that_would_use_cuda_in_the_slot() -> None:
    def given(tensor: int, **flags: object) -> list[str]:
        engine = {"name": "vllm", "flags": flags}
        made = recipe("m", engine=engine, memory={"kv_cache": "1GiB"}, dtype="bfloat16", parallel={"tensor": tensor})
        return list(settings.gpu_settings(made, 2048))

    assert settings.NO_FUSION in given(2)
    assert settings.NO_FUSION not in given(1)
    assert settings.NO_FUSION not in given(2, compilation_config="{}")


def test_a_long_prompt_takes_a_part_of_a_step_unless_the_recipe_says_more() -> None:
    flag = "--long-prefill-token-threshold"
    stated = words("cuda:0")
    assert stated[stated.index(flag) + 1] == "2048"
    assert flag not in words("cpu")
    assert flag not in words("cuda:0", enable_chunked_prefill=False)
    assert flag not in words("cuda:0", **{"no-enable-chunked-prefill": True}), "vLLM would cut its prompts"
    short = recipe("m", memory={"kv_cache": "1GiB"}, dtype="bfloat16", context_length=512)
    stated = list(settings._settings(short, Path("/weights"), "cuda:0"))
    assert stated[stated.index(flag) + 1] == "512"


def test_adapters_in_float32_are_refused_on_a_gpu() -> None:
    """vLLM's kernels assert 16 bits, so the engine would die at its start."""

    def given(dtype: str, places: int) -> Recipe:
        adapters = {"device": places, "host": places}
        return recipe("m", memory={"kv_cache": "1GiB", "adapters": adapters}, dtype=dtype)

    with pytest.raises(Unfit, match="16 bits only: set dtype to bfloat16") as refused:
        list(settings._settings(given("float32", 1), Path("/weights"), "cuda:0"))
    assert refused.value.param == "dtype"
    assert "--lora-dtype" in list(settings._settings(given("float32", 1), Path("/weights"), "cpu"))
    for allowed in (given("float32", 0), given("float16", 1), given("auto", 1)):
        assert "--lora-dtype" not in list(settings._settings(allowed, Path("/weights"), "cuda:0"))


def engine_config(sizes: list[int], step: int, context: int) -> SimpleNamespace:
    return SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=sizes),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=step),
        model_config=SimpleNamespace(max_model_len=context),
    )


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        (engine_config([1, 2, 512], 8192, 8192), [5, 16, 131, 132, 525, 526]),
        (engine_config([], 8192, 8192), [5, 13, 14, 16, 131, 132]),
        (engine_config([1, 512], 512, 8192), [5, 16, 131, 132, 512]),
        (engine_config([1, 512], 8192, 128), [5, 16, 126]),
    ],
)
def test_prompts_of_the_warm_up_reach_beyond_the_graphs_in_one_step(
    config: SimpleNamespace, lengths: list[int]
) -> None:
    assert warmup.prompt_lengths(config) == lengths


def test_prompts_of_the_warm_up_reach_each_configuration_of_the_kernels() -> None:
    config = engine_config([1, 512], 8192, 8192)
    assert warmup.prompt_lengths(config, [1, 512, 2048]) == [5, 16, 131, 132, 525, 526, 2061, 2062]


@given(step=st.integers(16, 4096), context=st.integers(8, 600), captured=st.sampled_from([0, 16, 256, 512]))
def test_where_one_prompt_is_too_short_several_exceed_the_graphs(step: int, context: int, captured: int) -> None:
    captured = min(captured, step)
    config = engine_config([captured] if captured else [], step, context)
    crowd, beyond = warmup.crowd_lengths(config), captured + 13
    if context - 2 >= beyond or step <= beyond + 2 * context:
        assert not crowd or sum(crowd[1:]) < step
        return
    assert max(crowd) <= context - 2
    for batch in (sum(crowd[1:]), sum(crowd[1:]) + 1):
        assert beyond <= batch <= step
        assert batch % 16, "vLLM's own warm-up compiles for these"


def test_the_starters_context_is_too_short_for_one_prompt() -> None:
    assert warmup.crowd_lengths(engine_config([1, 512], 2048, 512)) == [510, 510, 510]
    assert warmup.crowd_lengths(engine_config([1, 512], 512, 512)) == []
    assert warmup.crowd_lengths(engine_config([1, 512], 8192, 8192)) == []


@pytest.mark.parametrize("folder", ["single-gpu-80gb", "h200", "node-8x80gb"])
def test_a_warm_up_by_a_shipped_recipe_compiles_what_its_first_long_prompt_needs(folder: str) -> None:
    """It runs even and odd batches beyond the graphs, each as a whole, because its steps are long enough."""
    shipped = [one for one in load_recipes([ROOT / "recipes" / folder]) if one.memory.adapters.device]
    assert shipped
    for one in shipped:
        tokens = max(one.batching.max_tokens, one.batching.sequences)
        graphs = settings.capture_sizes(one.batching.sequences, one.batching.max_tokens)
        lengths = warmup.prompt_lengths(engine_config(graphs, tokens, one.context_length or 0))
        assert {length % 2 for length in lengths if length > graphs[-1]} == {0, 1}
        assert not any(length % 16 == 0 for length in lengths if length > graphs[-1])
        assert max(lengths) <= min(tokens, settings.swap_tokens(one) or tokens)


@given(requests=st.integers(1, 4096), tokens=st.integers(1, 16384))
def test_every_batch_of_single_tokens_has_a_graph_that_it_half_fills(requests: int, tokens: int) -> None:
    sizes = settings.capture_sizes(requests, tokens)
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= 1
    assert sizes[-1] == min(max(requests, tokens), 512)
    assert min(requests, 512) in sizes
    for batch in range(1, min(requests, 512) + 1):
        assert next(size for size in sizes if size >= batch) < 2 * batch
    assert len(sizes) <= len(settings.SIZES) + 2


def test_nothing_is_compiled_for_the_sampler_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    prewarm.environment()
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "1"
    prewarm.environment()
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "1"


def test_torch_is_not_loaded_before_its_environment_is_made() -> None:
    """torch reads some variables only once, such as those for pinned memory and its C++ log."""
    code = "import sys\nfrom models.chat.vllm import prewarm\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "False", done.stderr


PINNED = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    ("cuda", "count", "given", "setting"),
    [
        ("13.0", 16, {}, "pinned_use_cuda_host_register:True,pinned_num_register_threads:8"),
        ("13.0", 6, {}, "pinned_use_cuda_host_register:True,pinned_num_register_threads:4"),
        ("13.0", 16, {PINNED: "backend:native"}, "backend:native"),
        ("13.0", 16, {"PYTORCH_ALLOC_CONF": "backend:native"}, None),
        (None, 16, {}, None),
    ],
)
def test_memory_is_pinned_by_threads_on_a_build_with_cuda(
    cuda: str | None, count: int, given: dict[str, str], setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `pinned_max_round_threshold_mb`, with which torch 2.13 would return blocks that are too small."""
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(prewarm, "_torch_build", lambda: {"cuda": cuda})
    monkeypatch.setattr(prewarm, "cores", lambda: count)
    prewarm.environment()
    assert os.environ.get(PINNED) == setting


def test_torchs_build_is_known_without_an_import() -> None:
    import torch

    assert prewarm._torch_build()["cuda"] == torch.version.cuda


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
    """Other processes of vLLM, such as one that inspects a model's class, do not count."""
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
    """On a GPU another model's file may use CUDA, so it is left to vLLM."""
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


async def test_warm_up_requests_are_not_critical() -> None:
    """Critical ones would shorten the steps of the warm-up itself and of all streams."""
    headers: dict[bytes, bytes] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers.update(scope["headers"])
        await send({"type": "http.response.start", "status": 200})

    assert await asgi.whole_answer(app, "/v1/completions", {}) == (200, b"")
    assert int(headers[asgi.PRIORITY.encode()]) > budget.CRITICAL
