"""The one way in: what computes LoRA on this machine."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from functools import cache

import torch

from models.chat.vllm.cpu import compiled, products
from models.chat.vllm.cpu.batch import Batch
from models.chat.vllm.cpu.layer import Layer
from models.native import compiler as native
from models.native.cache_folder import cache_folder

AddLora = Callable[[torch.Tensor, torch.Tensor, Layer, Batch, float], None]
"""(output, inputs, layer, batch, scale): see `products.add`."""
_log = logging.getLogger(__name__)


@cache
def load() -> AddLora:
    """The compiled kernel; PyTorch's products, with a line in the log, where it cannot be had."""
    try:
        return compiled.Kernel(cache_folder("native"))
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as fault:
        _log.warning("no compiled LoRA kernel, mixed batches are slower: %s", native.explain(fault))
        return products.add
