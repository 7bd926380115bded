"""Import the modules that every chat engine needs, before its model is known.

EngineCore is a fork of this process (`models.chat.processes`), so what is imported here is imported once for both.
"""

import logging
import os
import runpy
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models.chat.requests.limits import BAD_WORD_BYTES
from models.chat.vllm import launch, plugin, request_classes, tuned, variables
from models.speech.decoder import DEMUXERS
from registry.base import importing
from registry.base.processor import cores

CORE = ("vllm.v1.engine.async_llm", "vllm.v1.engine.core", "vllm.v1.core.sched.scheduler", "vllm.lora.worker_manager")
CPU = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.lora.punica_wrapper.punica_cpu",
    "vllm.model_executor.models.llama",
    # imported by EngineCore when it reads weights and warms up
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.utils.cpu_triton_utils",
    "vllm.triton_utils.dispatcher",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.v1.pool.flash_maxsim.flash_maxsim_rerank",
)
CUDA = (
    "vllm.v1.worker.gpu_worker",
    "vllm.lora.punica_wrapper.punica_gpu",
    # models whose classes vLLM then need not inspect in a separate process (`launch`); none initialises CUDA
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.mistral",
    "vllm.model_executor.models.qwen2",
    "vllm.model_executor.models.qwen3",
)

SERVER = (
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.cohere.api_router",
    "vllm.entrypoints.generate.api_router",
    "vllm.entrypoints.generate.generative_scoring.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.openai.chat_completion.batch_serving",
    "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.models.api_router",
    "vllm.entrypoints.openai.responses.api_router",
    "vllm.entrypoints.scale_out.derender.api_router",
    "vllm.entrypoints.scale_out.factories",
    "vllm.entrypoints.scale_out.render.api_router",
    "vllm.entrypoints.scale_out.token_in_token_out.api_router",
    "vllm.entrypoints.serve.elastic_ep.api_router",
    "vllm.entrypoints.serve.instrumentator.metrics",
    "vllm.entrypoints.serve.instrumentator.offline_docs",
    "vllm.entrypoints.serve.lora.api_router",
    "vllm.entrypoints.serve.profile.api_router",
    "vllm.entrypoints.serve.tokenize.api_router",
    "vllm.entrypoints.serve.utils.fingerprint",
    "vllm.renderers.hf",
    "vllm.v1.structured_output.backend_lm_format_enforcer",
    "vllm.v1.structured_output.backend_outlines",
    "model_hosting_container_standards.sagemaker",
)
"""Modules that vLLM's HTTP application imports while being built."""

RAISES_LEVELS = "model_hosting_container_standards.logging_config"
"""Module whose import raises the level of the root logger and its handlers to ERROR."""
MAX_ANSWERS = 128
"""Largest `n` of one request; OpenAI's own limit."""
NOT_REACHED = 1 << 16
"""Value for vLLM's limits on stop strings (4 by default) and prompts per request (1,024), above our own limits, which
refuse with a clear message."""
OTHERS = (
    "VLLM_CPU_KVCACHE_SPACE", "VLLM_DP_RANK", "VLLM_DP_SIZE",  # would override the recipe's bytes and devices
    "VLLM_RUST_FRONTEND_PATH", "VLLM_USE_RUST_FRONTEND",  # of another server than the one in a slot
    "VLLM_LOGGING_CONFIG_PATH", "VLLM_USE_MODELSCOPE",  # no model would load: not with our log, nor without a package
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "VLLM_ENABLE_RESPONSES_API_STORE",  # would log or keep answers
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_SKIP_MODEL_NAME_VALIDATION",  # would answer to names of unknown weights
)  # fmt: skip
"""Variables for a vLLM of one's own, which its engine must not see here."""
PLUGINS, OWN_PLUGIN = "VLLM_PLUGINS", "roundhouse"
"""The variable that limits vLLM to the plug-ins which it names, and our entry point in pyproject.toml."""
VIDEOS = f"{DEMUXERS},apng,gif,h264,hevc,ivf,m4v"
"""FFmpeg's demuxers for videos: none that opens other files, such as `concat`."""


def environment() -> None:
    """Settings that vLLM reads from the environment when it is first imported; EngineCore inherits them."""
    # read by tqdm at its import by torch; otherwise progress bars of CUDA graphs appear in the server's log
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings would be plain lines among JSON lines
    if _torch_build()["cuda"] is not None:  # torch may read it at its import
        _pin_by_threads()
    import torch

    os.environ.update(
        VLLM_NO_USAGE_STATS="1",
        VLLM_CONFIGURE_LOGGING="0",
        VLLM_LOGGING_LEVEL="WARNING",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_MAX_N_SEQUENCES=str(MAX_ANSWERS),
        VLLM_MAX_STOP_STRINGS=str(NOT_REACHED),
        VLLM_MAX_COMPLETION_PROMPTS=str(NOT_REACHED),
        VLLM_MAX_NUM_BAD_WORDS=str(BAD_WORD_BYTES),
        VLLM_MAX_BAD_WORDS_TOTAL_TOKENS=str(BAD_WORD_BYTES),
        VLLM_MEDIA_URL_ALLOW_REDIRECTS="0",  # redirects lead out of the domains that a recipe allows
        OPENCV_FFMPEG_CAPTURE_OPTIONS=f"format_whitelist;{VIDEOS}|protocol_whitelist;none|enable_drefs;0",
        TOKENIZERS_PARALLELISM="false",
    )
    os.environ[variables.ACTIVE] = "1"
    _keep_log_levels()
    if not logging.getLogger("roundhouse").isEnabledFor(logging.DEBUG):
        for name in ("vllm", "py.warnings"):  # a dozen warnings per load about our settings and torch's deprecations
            logging.getLogger(name).setLevel(logging.ERROR)
    # FlashInfer's sampler is compiled at its first use, with nvcc and ninja from PATH (vLLM issue 49497). Set this to 1
    # if you have them.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    tuned.use()
    # otherwise Gloo listens at the address of the host's name, which may be on a network
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if torch.version.cuda is None and torch.version.hip is None:
        # otherwise the first request with logprobs would stall the engine for 8 to 15 s to compile a small function
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    for name in OTHERS:
        os.environ.pop(name, None)
    if (plugins := os.environ.get(PLUGINS)) is not None and OWN_PLUGIN not in plugins.split(","):
        os.environ[PLUGINS] = f"{plugins},{OWN_PLUGIN}"


def _torch_build() -> dict[str, str | None]:
    """Return the build from torch's version.py, without importing torch."""
    spec = find_spec("torch")
    assert spec is not None
    return runpy.run_path(str(Path(str(spec.origin)).with_name("version.py")))


def _pin_by_threads() -> None:
    """Make torch touch the pages of pinned memory in several threads and register them, unless it has settings already.

    cudaHostAlloc would take most of a first sleep, nearly all for the first touch of the pages.
    `pinned_max_round_threshold_mb`, which would save a third of an adapter's memory, is not set: torch 2.13 reuses a
    cached block by the power of two above its size, so it may be too small for the request.
    """
    if not {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & os.environ.keys():
        count = 1 << (min(8, cores()).bit_length() - 1)  # torch takes powers of two only
        pinned = f"pinned_use_cuda_host_register:True,pinned_num_register_threads:{count}"
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = pinned


def prewarm_server() -> None:
    """Import what only this process needs, while EngineCore starts, and patch the request classes."""
    with importing.fast_imports():
        routers = [router for module in _import_known(SERVER) if (router := getattr(module, "router", None))]
        request_classes.patch_classes(route for router in routers for route in router.routes)


def _keep_log_levels() -> None:
    """Import the module of vLLM's server that raises all log levels to ERROR, and restore the levels.

    Otherwise a slot would lose its own messages and warnings as soon as it has loaded a chat model.
    """
    if RAISES_LEVELS in sys.modules:
        return
    raised: list[logging.Logger | logging.Handler] = [logging.getLogger(), *logging.getLogger().handlers]
    levels = [part.level for part in raised]
    with suppress(ModuleNotFoundError):
        import_module(RAISES_LEVELS)
    for part, level in zip(raised, levels, strict=True):
        part.setLevel(level)


def prewarm(hurried: Callable[[], bool]) -> None:
    """Import what EngineCore needs and, unless a load is waiting, what only this process needs.

    Cheap if called again. Starts no processes, and no threads except idle pools of numerical libraries, which a fork
    does not need.
    """
    prewarm_core()
    if not hurried():
        prewarm_server()


def prewarm_core() -> None:
    """Import what EngineCore needs. Blocks for seconds; safe in any thread."""
    environment()
    # It logs a warning with the client's URL for each image that could not be fetched.
    logging.getLogger("vllm.connections").setLevel(logging.ERROR)
    with importing.fast_imports():
        _import_all()


def _import_known(names: Iterable[str]) -> list[Any]:
    """Import those of the named modules that this release has. A load imports others by itself."""
    modules = []
    for name in names:
        with suppress(ModuleNotFoundError):
            modules.append(import_module(name))
    return modules


def _import_all() -> None:
    platform = import_module("vllm.platforms").current_platform
    if not platform.device_type:
        raise RuntimeError(
            "vLLM's build for GPUs is installed, and no GPU can be used (roundhouse doctor --device cuda says why). "
            "Give the container one (--gpus all), or for a CPU install the other build: make install ACCELERATOR=cpu"
        )
    if not platform.is_cpu():
        plugin.patch_device_ids()
    for name in CORE:
        import_module(name)
    _import_known(CPU if platform.is_cpu() else CUDA)
    launch.server()
    launch.parser()
    plugin.register()  # as vLLM does at a start; here it also applies to the fork
