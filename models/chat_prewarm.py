"""Import what a chat engine and its EngineCore need before it is known which model they will load.

EngineCore is a fork of this process (`chat_start`), so what is imported here is imported once for both.
"""

import gc
import os
from importlib import import_module

from models import chat_vllm

CORE = ("vllm.v1.engine.async_llm", "vllm.v1.engine.core", "vllm.v1.core.sched.scheduler", "vllm.lora.worker_manager")
CPU = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.lora.punica_wrapper.punica_cpu",
    "vllm.model_executor.models.llama",
)
CUDA = ("vllm.v1.worker.gpu_worker", "vllm.lora.punica_wrapper.punica_gpu", "vllm.model_executor.models.llama")

MAX_ANSWERS = 128
"""Largest `n` of one request; OpenAI's own limit."""


def environment() -> None:
    """Settings that vLLM reads from the environment when it is first imported; EngineCore inherits them."""
    os.environ.update(
        VLLM_NO_USAGE_STATS="1",
        VLLM_CONFIGURE_LOGGING="0",
        VLLM_LOGGING_LEVEL="WARNING",
        ROUNDHOUSE_VLLM="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_MAX_N_SEQUENCES=str(MAX_ANSWERS),
        TOKENIZERS_PARALLELISM="false",
    )
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would win over the bytes of the recipe


def prewarm() -> None:
    """Blocks for seconds, cheap when called again; safe in any thread. Starts no thread and no process."""
    environment()
    for name in CORE:
        import_module(name)
    platform = import_module("vllm.platforms").current_platform
    for name in CPU if platform.is_cpu() else CUDA:
        import_module(name)
    chat_vllm.server()
    chat_vllm.parser()
    gc.collect()
    gc.freeze()  # what is imported stays: the collector need not look at it, nor copy its pages after the fork
