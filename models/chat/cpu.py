"""Networks that vLLM's CPU build gets wrong, or has no kernels for: refused there by proposal and load, or told how."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from registry.errors import Unfit
from registry.files.shape import Shape

_BIAS, _NO_KERNEL = "experts that are chosen by a bias, which is left out there", "layers that have no kernel there"
UNFIT: Mapping[str, str] = {
    "Ernie4_5_MoeForCausalLM": _BIAS,
    "Ernie4_5_VLMoeForConditionalGeneration": _BIAS,
    "JambaForCausalLM": _NO_KERNEL,
    "MambaForCausalLM": _NO_KERNEL,
    "FalconMambaForCausalLM": _NO_KERNEL,
    "OlmoHybridForCausalLM": _NO_KERNEL,
}
"""By architecture, as vLLM 0.32 is: its router of experts on a CPU (`cpu_router`), Mamba-1's scan, Triton."""

NATIVE_POSITIONS = frozenset({"Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration"})
"""They hand the kernel of rotary positions one dimension more than it reads on a CPU, and it turns other values."""


def flags(config: Mapping[str, Any]) -> Iterator[str]:
    """What vLLM is told beside the recipe's own flags, which come after these."""
    if _architecture(config) in NATIVE_POSITIONS:
        yield from ("--compilation-config", json.dumps({"custom_ops": ["all", "-rotary_embedding"]}))


def _architecture(config: Mapping[str, Any]) -> str:
    return str((config.get("architectures") or [""])[0])


def refuse(config: Mapping[str, Any], shape: Shape, where: str) -> None:
    """Raises Unfit for a network that is not for a CPU. `where`: its folder or repository."""
    why = UNFIT.get(_architecture(config), "")
    if shape.latent:
        why = "latent attention (MLA, as DeepSeek-V2 and later)"
    if why:
        raise Unfit(
            f"{where} is not for vLLM's CPU build, whose answers are not what the model says, or none: it has {why}. "
            "Serve it on a GPU.",
            code="not_on_cpu",
            param="source",
        )
