"""What crosses from the slot into EngineCore's process, by environment, and what that process does for itself."""

from __future__ import annotations

import multiprocessing
import os

from models.parent import die_with_parent

ACTIVE = "ROUNDHOUSE_VLLM"
"""1: the plug-in is at work. A plain vLLM in the same environment stays as it was made."""
THREADS = "ROUNDHOUSE_VLLM_THREADS"
"""Compute threads of EngineCore on a CPU: two threads on busy cores wait for each other at every layer."""
SWAP_TOKENS = "ROUNDHOUSE_VLLM_SWAP_TOKENS"
"""Most tokens of a step while adapters come (`brisk`); empty: as ever."""
CRITICAL_TOKENS = "ROUNDHOUSE_VLLM_CRITICAL_TOKENS"
"""The same while critical requests come."""
FOLLOW = "ROUNDHOUSE_VLLM_FOLLOW"
"""Seconds of CPU to follow a grammar, and for each token (`grammars.Watched`)."""
CAUSE = "ROUNDHOUSE_VLLM_CAUSE"
"""The file that takes the reason of a failed start."""


def enter() -> None:
    """What EngineCore's own process needs. Called again when EngineCore begins: a fork has its plug-ins loaded."""
    if multiprocessing.current_process().name.startswith("EngineCore"):
        slot = multiprocessing.parent_process()
        if slot is not None:
            die_with_parent(int(slot.pid or 0))  # whatever this process is doing, and also when it is stopped
        _bound_threads()


def _bound_threads() -> None:
    """Set the compute threads of this process; vLLM's CPU worker makes later calls to set them do nothing."""
    if threads := os.environ.get(THREADS):
        import torch

        torch.set_num_threads(int(threads))
