"""Does what slots do for chat models on an H100, until EngineCore needs the GPU: each in a process of its own.

    python -m tests.rehearsal.probe RECIPE FOLDER [RECIPE FOLDER ...]

The driver is `driver.c`. With vLLM's CUDA build, nothing is changed. With the CPU build, vLLM's modules are imported
and then switched to the CUDA platform: the kernels are missing, but all other files are the same. A slot imports vLLM
before it knows its model, so all slots are forks of one process that has. Each prints what it found as JSON, and logs
the driver's calls in `calls` beside its folder.
"""

import json
import os
import sys
import traceback
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from vllm.third_party import pynvml

sys.modules.setdefault("pynvml", pynvml)  # named as in nvidia-ml-py, which the CPU build does not install

from models import nvml  # noqa: E402
from models.chat import settings, warmup  # noqa: E402
from models.chat.vllm import launch, plugin, prewarm  # noqa: E402
from registry.bounds import USUAL  # noqa: E402
from registry.errors import EngineFailed  # noqa: E402
from registry.recipes.loading import load_recipes  # noqa: E402

SECOND = "vllm.v1.worker.gpu"
"""Package of Model Runner V2."""


def switch() -> None:
    """Switch all imported modules from the CPU's platform to CUDA's. The CUDA build needs no change."""
    if not import_module("vllm.platforms").current_platform.is_cpu():
        return
    sys.modules["vllm._C_stable_libtorch"] = types.ModuleType("vllm._C_stable_libtorch")
    platforms, cuda = import_module("vllm.platforms"), import_module("vllm.platforms.cuda")
    before, after = platforms.current_platform, cuda.CudaPlatform()
    vars(platforms)["_current_platform"] = after
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("vllm") and vars(module).get("current_platform") is before:
            module.current_platform = after  # type: ignore[attr-defined]
    vars(import_module("vllm.config.vllm"))["HAS_TRITON"] = True
    plugin.patch_gpu()  # the CUDA build's platform does this itself


def inspected() -> list[object]:
    """Return a list that receives every model class which vLLM would inspect in a separate process."""
    found: list[object] = []

    def run(look: Callable[[], Any]) -> Any:
        found.append(repr(look))
        return look()

    vars(import_module("vllm.model_executor.models.registry"))["_run_in_subprocess"] = run
    return found


def started(arguments: Any) -> dict[str, Any]:
    """Fork EngineCore, which fails when it first asks for the GPU. Return the error that the slot gets."""
    try:
        launch.start_engine(arguments, "cuda:0", 1, USUAL)
    except EngineFailed as fault:
        return {"told": fault.message, "code": fault.code, "way": os.environ["VLLM_WORKER_MULTIPROC_METHOD"]}
    return {"told": "it runs"}


def import_all() -> None:
    prewarm.prewarm_core()
    prewarm._import_known(prewarm.CUDA)
    import_module(f"{SECOND}.model_runner")
    switch()


def probe(recipe_file: str, folder: str) -> dict[str, Any]:
    runner = import_module(f"{SECOND}.model_runner")
    looked = inspected()
    (recipe,) = load_recipes([Path(recipe_file)])
    arguments = settings.arguments(recipe, Path(folder), "cuda:0", launch.parser())
    requested_to_sleep = arguments.enable_sleep_mode
    arguments.enable_sleep_mode = requested_to_sleep and launch.sleep_mode_available()
    config = launch.configuration(arguments, "cuda:0")
    core = import_module("vllm.v1.engine.core").EngineCore
    manager = import_module("vllm.lora.worker_manager").LRUCacheWorkerLoRAManager
    envs = import_module("vllm.envs")
    return {
        "pid": os.getpid(),
        "gpu": nvml.gpu("cuda:0").name,
        "driver": nvml.driver(),
        "second_runner": config.use_v2_model_runner,
        "share": config.cache_config.gpu_memory_utilization,
        "kv_cache": config.cache_config.kv_cache_memory_bytes,
        "flashinfer_sampler": bool(envs.VLLM_USE_FLASHINFER_SAMPLER),
        "autotune": config.kernel_config.enable_flashinfer_autotune,
        "sizes": config.compilation_config.cudagraph_capture_sizes,
        "max_model_len": config.model_config.max_model_len,
        "long_prefill": config.scheduler_config.long_prefill_token_threshold,
        "warm_up": warmup.prompt_lengths(config),
        "executor": str(config.parallel_config.distributed_executor_backend),
        "worker": config.parallel_config.worker_cls,
        "extension": config.parallel_config.worker_extension_cls,
        "asked_to_sleep": requested_to_sleep,
        "lora": None
        if config.lora_config is None
        else [config.lora_config.max_loras, config.lora_config.max_lora_rank],
        "inspected": looked,
        "runner_loads_adapters_as_the_first_does": any(
            kind.__name__ == "LoRAModelRunnerMixin" for kind in runner.GPUModelRunner.__mro__
        ),
        "core_is_ours": core.__init__.__module__,
        "intake_is_ours": core.preprocess_add_request.__module__,
        "metadata_is_ours": import_module(
            "vllm.lora.punica_wrapper.punica_gpu"
        ).PunicaWrapperGPU.update_metadata.__module__,
        "groups_are_ours": runner.get_num_active_loras_for_dispatch.__module__,
        "manager_is_ours": manager.add_adapter.__module__,
        "sleep_is_ours": import_module("vllm.v1.worker.gpu_worker").Worker.sleep.__module__,
        "number_of_its_gpu": import_module("vllm.platforms").current_platform.device_id_to_physical_device_id(0),
        "start": started(arguments),
    }


def fork(recipe_file: str, folder: str) -> None:
    """Probe a recipe in a fork of this process."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(1)
        return
    os.environ["REHEARSAL_LOG"] = str(Path(folder).with_name("calls"))
    try:
        print(json.dumps(probe(recipe_file, folder)), flush=True)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    import_all()
    for given in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        fork(*given)
