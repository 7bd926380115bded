"""What vLLM calls in each of its processes: all changes to vLLM are made here, each by the `patch` of its file.

`touches.py` has their reasons. They rely on private parts of vLLM: a version that was not checked is refused.
"""

from __future__ import annotations

import os
from functools import cache

from packaging.version import Version

from models.chat.vllm import process

CHECKED = {(0, 32)}
"""Releases on which the tests of these patches passed."""


def register() -> None:
    """Apply the patches, if this process belongs to a chat engine. Safe to call often.

    Raises RuntimeError on a vLLM that was not checked, which stops the load with that message.
    """
    if os.environ.get(process.ACTIVE) != "1":
        return
    import vllm

    if Version(vllm.__version__).release[:2] not in CHECKED:
        checked = ", ".join(f"{major}.{minor}" for major, minor in sorted(CHECKED))
        raise RuntimeError(f"vLLM {vllm.__version__} was not checked with Roundhouse's adapters; install {checked}")
    _patch_all()
    process.enter()


@cache
def _patch_all() -> None:
    """Once in a process; in one that is forked from it all is done already."""
    import vllm.lora.lora_model as lora_model
    import vllm.lora.model_manager as model_manager
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
    from vllm.platforms import current_platform
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.structured_output import StructuredOutputManager

    from models.chat.vllm import core, grammars
    from models.chat.vllm.adapters import file, manager
    from models.chat.vllm.cpu import experts, punica

    manager.patch(LRUCacheWorkerLoRAManager, model_manager)
    file.patch(lora_model)
    core.patch(EngineCore, process.enter)
    grammars.patch(StructuredOutputManager, SamplingParams)
    if current_platform.is_cpu():
        punica.patch(type(current_platform))
        experts.register()
