"""Which quantized weights the device can compute with.

CUDA: the least compute capabilities are those of `get_min_capability` in vLLM 0.32's quantization classes. CPU: what
vLLM's page on quantization says of x86 (AWQ, GPTQ, INT8 W8A8), and its kernels' own conditions: FP8 asks for AMX
(vllm/model_executor/kernels/linear/scaled_mm/cpu.py).
"""

from collections.abc import Mapping
from typing import Any

from launch.proposal.draft import Machine
from models.chat.vllm import source as vllm_source
from registry.base.processor import features
from registry.errors import Unfit
from registry.files.shape import nested_configs

LEAST: Mapping[str, int] = {
    "awq": 75, "gptq": 60, "fp8": 75, "fbgemm_fp8": 80, "modelopt": 80, "modelopt_fp4": 75, "mxfp4": 80,
    "compressed-tensors": 70, "experts_int8": 80, "moe_wna16": 70, "torchao": 75,
}  # fmt: skip
CPU_METHODS = frozenset({"awq", "gptq", "inc", "auto-round"})
INTEGER_FORMATS = frozenset({"int-quantized", "pack-quantized"})
"""Formats of compressed-tensors."""
ON_CPU = "A CPU computes with AWQ, GPTQ and compressed-tensors of integers: add one of those, or the original."


def quantization_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """Method and format of a config; ('', '') for weights that are not quantized."""
    configs = (config_part.get("quantization_config") for config_part in nested_configs(config))
    inner = next((one for one in configs if isinstance(one, dict)), None)
    if inner is None:
        return "", ""
    return str(inner.get("quant_method") or "unknown").lower(), str(inner.get("format") or "")


def check_quantization(config: Mapping[str, Any], machine: Machine) -> str:
    """The method in words; '' for none. Raises Unfit for one that cannot be computed here."""
    method, form = quantization_of(config)
    if not method:
        return ""
    description = f"{method}, {form}" if form else method
    supported = vllm_source.quantizations()
    if supported and method not in supported and method not in CPU_METHODS:
        few = ", ".join(sorted({"awq", "gptq", "fp8", "compressed-tensors", "mxfp4"} & supported))
        raise Unfit(
            f"Its weights are quantized as {description}, which the installed vLLM does not read. "
            f"It reads {few}, or add the "
            "original.",
            code="unknown_quantization",
            param="source",
        )
    if machine.kind == "cpu":
        integers = method == "compressed-tensors" and form in INTEGER_FORMATS
        amx = method in ("fp8", "compressed-tensors") and "amx_tile" in features()
        if method not in CPU_METHODS and not integers and not amx:
            raise Unfit(
                f"Its weights are quantized as {description}, which this CPU does not compute with. {ON_CPU}",
                code="quantization_not_here",
                param="source",
            )
    elif machine.capability is not None and machine.capability < LEAST.get(method, 0):
        have, least = machine.capability / 10, LEAST[method] / 10
        raise Unfit(
            f"Its weights are quantized as {description}, which needs compute capability {least}; this GPU has {have}. "
            "Add "
            "the original, or one that is quantized with AWQ or GPTQ.",
            code="quantization_not_here",
            param="source",
        )
    return description
