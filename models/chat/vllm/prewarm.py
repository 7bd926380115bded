"""Import what a chat engine and its EngineCore need before it is known which model they will load.

EngineCore is a fork of this process (`models.chat.start`), so what is imported here is imported once for both.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from models import importing, torch_later
from models.chat.vllm import launch

CORE = ("vllm.v1.engine.async_llm", "vllm.v1.engine.core", "vllm.v1.core.sched.scheduler", "vllm.lora.worker_manager")
CPU = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.lora.punica_wrapper.punica_cpu",
    "vllm.model_executor.models.llama",
)
CUDA = ("vllm.v1.worker.gpu_worker", "vllm.lora.punica_wrapper.punica_gpu", "vllm.model_executor.models.llama")

SERVER = (
    "vllm.entrypoints.anthropic.api_router",
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
    "model_hosting_container_standards.sagemaker",
)
"""What vLLM's HTTP application imports when it is made."""

LATER = {"scipy_signal": "scipy.signal", "cv2": "cv2", "vr": "cv2.videoio_registry", "av": "av"}
"""Names in vLLM's modules for media, and what they stand for once it is asked for."""
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


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Imports inside find that `packages` are not installed, unless they are imported already."""
    hidden = [name for name in packages if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to say 'not to be found'
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def needless() -> tuple[str, ...]:
    """Packages that vLLM's imports take along for nothing: 1,000 modules, 200 MB and a fifth of the time in all.

    scikit-learn: transformers wants it for assisted generation, which vLLM does itself. SciPy: transformers wants it
    for losses of training, vLLM to resample recordings (see `Later`). OpenCV and PyAV: vLLM reads videos and recordings
    in messages with them (`Later`, too). Triton: PyTorch and vLLM import it on a CPU, too, see that it has no back end
    for one, and do without.
    """
    return ("sklearn", "scipy", "cv2", "av", *(["triton"] if _is_cpu_build() else ()))


def _is_cpu_build() -> bool:
    with suppress(PackageNotFoundError):  # the import of vLLM will tell
        return version("torch").endswith("+cpu")
    return False


class Later:
    """Stands for a module until something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


def _take_back() -> None:
    """What was hidden can be used from now on: only the imports were spared."""
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.multimodal"):
            for attribute, real in LATER.items():
                # not 'isinstance': vLLM's stand-in for what is not installed answers every question with an error
                if type(vars(module).get(attribute)).__module__ == "vllm.utils.import_utils":
                    setattr(module, attribute, Later(real))
    packages = sys.modules.get("transformers.utils.import_utils")
    for name in ("sklearn", "scipy", "cv2", "av"):  # they keep their first answer
        forget = getattr(getattr(packages, f"is_{name}_available", None), "cache_clear", None)
        if forget is not None:
            forget()


def prewarm_server() -> None:
    """What only this process needs and EngineCore does not: a load has it imported while EngineCore starts."""
    with importing.quickly():
        for name in SERVER:
            with suppress(ModuleNotFoundError):  # of another release
                import_module(name)


def prewarm() -> None:
    """Blocks for seconds, cheap when called again; safe in any thread. Starts no thread and no process."""
    environment()
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # it would tell that Triton is not there
    with importing.quickly():
        with without(*needless()), _used_later():
            _import_all()
        _take_back()


def _used_later() -> AbstractContextManager[None]:
    """On a CPU nothing is compiled, and no tensor is sharded."""
    return torch_later.only().imports() if _is_cpu_build() else nullcontext()


@cache
def _patch() -> None:
    """As vLLM does it at a start; here it counts for the fork, too."""
    for patches in entry_points(group="vllm.general_plugins", name="roundhouse"):
        patches.load()()


def _import_all() -> None:
    for name in CORE:
        import_module(name)
    platform = import_module("vllm.platforms").current_platform
    for name in CPU if platform.is_cpu() else CUDA:
        import_module(name)
    launch.server()
    launch.parser()
    _patch()
