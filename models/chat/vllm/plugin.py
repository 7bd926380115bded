"""Start-up of vLLM's processes: settings from the environment, and patches for each.

`touches.py` lists the patches; each is applied by the `patch` of its file. They rely on private parts of vLLM, so
untested versions are refused.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from functools import cache
from multiprocessing import util

from packaging.version import Version

from models import tokenizer_files
from models.chat.vllm import variables
from models.process_control import die_with_parent
from registry.errors import EngineFailed


class CauseFile:
    """The cause of EngineCore's end, in an unnamed file that disappears with the slot."""

    def __init__(self) -> None:
        self._file = os.memfd_create("roundhouse-cause")
        os.environ[variables.CAUSE] = f"/proc/{os.getpid()}/fd/{self._file}"

    def recorded_error(self) -> EngineFailed | None:
        """Return the error that EngineCore recorded; None if there is none."""
        if not (text := os.pread(self._file, 1 << 20, 0)):
            return None
        memory, what = json.loads(text)
        return EngineFailed(what, code="out_of_memory" if memory else "engine_failed")

    def close(self) -> None:
        os.close(self._file)


def enter() -> None:
    """Prepare EngineCore's process. Also called when EngineCore starts, because a fork does not reload plug-ins."""
    if multiprocessing.current_process().name.startswith("EngineCore"):
        slot = multiprocessing.parent_process()
        if slot is not None:
            die_with_parent(int(slot.pid or 0))  # whatever this process is doing, even if it is stopped
        _bound_threads()


def enter_worker(_: object = None) -> None:
    """Prepare the process of one of several workers, which is a fork of EngineCore."""
    process, core = multiprocessing.current_process(), multiprocessing.parent_process()
    if not process.name.startswith(WORKER) or core is None:
        return
    die_with_parent(int(core.pid or 0))
    if cores := os.environ.get(variables.CORES):
        own = cores.split("|")[int(process.name.removeprefix(WORKER))]
        os.sched_setaffinity(0, map(int, own.split(",")))
    _bound_threads()


def _bound_threads() -> None:
    """Set the compute threads of this process. vLLM's CPU worker disables later changes."""
    if threads := os.environ.get(variables.THREADS):
        import torch

        torch.set_num_threads(int(threads))


WORKER = "VllmWorker-"
"""The prefix of a worker's process name, followed by its rank."""
CHECKED = {(0, 32)}
"""Releases with which the tests of these patches passed."""


def register() -> None:
    """Apply the patches if this process belongs to a chat engine. Safe to call repeatedly.

    Raises RuntimeError for an untested version of vLLM, which stops the load with that message.
    """
    if os.environ.get(variables.ACTIVE) != "1":
        return
    import vllm

    if Version(vllm.__version__).release[:2] not in CHECKED:
        checked = ", ".join(f"{major}.{minor}" for major, minor in sorted(CHECKED))
        raise RuntimeError(f"vLLM {vllm.__version__} was not checked with Roundhouse's adapters; install {checked}")
    _patch_all()
    enter()


class _Forks:
    """The object through which Python calls `enter_worker`. It must stay referenced."""


_FORKS = _Forks()


@cache
def _patch_all() -> None:
    """Apply all patches, once per process; a fork already has them."""
    import vllm.lora.lora_model as lora_model
    import vllm.lora.model_manager as model_manager
    import vllm.multimodal.cache.factories as factories
    import vllm.multimodal.image as image
    import vllm.multimodal.media.audio as media_audio
    import vllm.multimodal.media.connector as connector
    import vllm.multimodal.media.image as media_image
    import vllm.multimodal.video as video
    import vllm.multimodal.video_decoders.base as decoders
    import vllm.multimodal.video_decoders.opencv as opencv
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.platforms import current_platform
    from vllm.renderers.base import BaseRenderer
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.core_client import AsyncMPClient
    from vllm.v1.structured_output import StructuredOutputManager

    from models.chat.vllm import core, grammars, missing_weights
    from models.chat.vllm.adapters import manager, read
    from models.chat.vllm.cpu import punica
    from models.chat.vllm.media import decoding, reading, sending
    from models.chat.vllm.steps import batch_share

    tokenizer_files.patch()
    manager.patch(LRUCacheWorkerLoRAManager, model_manager)
    read.patch_loader(lora_model)
    core.patch(EngineCore, enter)
    batch_share.patch(Scheduler)
    util.register_after_fork(_FORKS, enter_worker)
    grammars.patch(StructuredOutputManager, SamplingParams)
    SamplingParams._verify_greedy_sampling = lambda _: None
    missing_weights.patch(DefaultModelLoader)
    reading.patch(factories, image, BaseRenderer)
    decoding.patch(connector, media_image, media_audio, video, (decoders, opencv))
    sending.patch(AsyncMPClient, EngineCore)
    if current_platform.is_cpu():
        punica.patch(type(current_platform))
        punica.patch_experts()
    else:
        patch_gpu()


def patch_gpu() -> None:
    """Apply the patches for a GPU, without using it; `variables.STOCK` may leave out the one only for speed."""
    from vllm.v1.worker.gpu_worker import Worker

    from models.chat.vllm.cuda import sleep_memory

    patch_device_ids()
    sleep_memory.patch(Worker)
    _active_counts()
    if os.environ.get(variables.STOCK) != "metadata":
        _metadata()


def patch_device_ids() -> None:
    """Patch what vLLM uses already while its modules are imported. Does not use the device."""
    from vllm.platforms import current_platform

    from models.chat.vllm.cuda import device_ids

    device_ids.patch(type(current_platform))


def _metadata() -> None:
    from vllm.lora.punica_wrapper.punica_gpu import PunicaWrapperGPU
    from vllm.v1.worker.gpu.lora_utils import LoraState

    from models.chat.vllm.adapters import metadata

    metadata.patch(PunicaWrapperGPU, LoraState)


def _active_counts() -> None:
    import vllm.lora.punica_wrapper.punica_gpu as punica_gpu
    import vllm.lora.utils as lora_utils
    import vllm.v1.cudagraph_dispatcher as dispatcher
    import vllm.v1.worker.gpu.lora_utils as gpu_lora_utils
    import vllm.v1.worker.gpu.model_runner as runner

    from models.chat.vllm.adapters import active_counts

    active_counts.patch([lora_utils, punica_gpu, dispatcher, gpu_lora_utils], runner)
