"""The GPU that an entry of CUDA_VISIBLE_DEVICES names, also by a UUID's beginning or as a part of a GPU (MIG).

vLLM finds whole UUIDs of GPUs only. If the variable has the beginning of one, as CUDA allows, the load fails. A part is
taken for the GPU that has the number which the part has on its own GPU (vLLM's issues 51677 and 41848).
"""

from __future__ import annotations

from typing import Any

from models import nvml


def _physical_id(_: Any, device_id: str) -> int:
    return int(device_id) if device_id.isdigit() else nvml.index(device_id)


def patch(platform: Any) -> None:
    """platform: the class of vLLM's platform for CUDA."""
    platform.device_control_id_to_physical_device_id = classmethod(_physical_id)
