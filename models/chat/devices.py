"""Arguments of vLLM for a CPU and for a GPU, before the recipe's flags; and networks that its CPU build gets wrong."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from registry.errors import Unfit
from registry.files.shape import Shape
from registry.recipes.definition import Recipe

_BIAS, _NO_KERNEL = "experts that are chosen by a bias, which is left out there", "layers that have no kernel there"
UNFIT: Mapping[str, str] = {
    "Ernie4_5_MoeForCausalLM": _BIAS,
    "Ernie4_5_VLMoeForConditionalGeneration": _BIAS,
    "JambaForCausalLM": _NO_KERNEL,
    "MambaForCausalLM": _NO_KERNEL,
    "FalconMambaForCausalLM": _NO_KERNEL,
    "OlmoHybridForCausalLM": _NO_KERNEL,
}
"""Faults by architecture in vLLM 0.32: its router of experts on a CPU (`cpu_router`), Mamba-1's scan, Triton."""

NATIVE_POSITIONS = frozenset({"Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration"})
"""Networks that pass one dimension too many to the kernel of rotary positions on a CPU, which then turns other
values.
"""


def cpu_flags(config: Mapping[str, Any]) -> Iterator[str]:
    """Arguments of vLLM on a CPU; the recipe's own flags come after these."""
    if _architecture(config) in NATIVE_POSITIONS:
        yield from ("--compilation-config", json.dumps({"custom_ops": ["all", "-rotary_embedding"]}))


def _architecture(config: Mapping[str, Any]) -> str:
    return str((config.get("architectures") or [""])[0])


def refuse_on_cpu(config: Mapping[str, Any], shape: Shape, where: str) -> None:
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


SHARE = "0.01"
"""The share of the card that vLLM must find free at its start: 0.92 by default, even where the KV cache is given in
bytes, so that no second model would start. Our budget in bytes decides what may be loaded; nothing else reads this
value then.
"""
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Batches that CUDA graphs are captured for; others are filled up to the next one. vLLM's own list has 51, and with
LoRA each is captured twice: time of a start, and memory. No batch is filled up to twice its size here, and a step of
decoding mostly waits for the weights to be read. On an H100 an 8B shape with adapters took 17 s for 54 captures; vLLM's
own list took 24 s for 108, with 64 requests at once at 1.07 times the tokens a second, gateway and all."""
GRAPH_FLAGS = {"cudagraph_capture_sizes", "enforce_eager", "max_cudagraph_capture_size", "speculative_config"}
"""Flags with which vLLM derives the sizes itself, or has none; `compilation_config` may hold the same."""


LONG_PREFILL = 2048
"""Tokens of one prompt in a step, when other requests are in the engine: a step of 8,192 tokens of an 8B shape holds
every stream for 0.18 s on an H100, one of 2,048 for a quarter of that. A prompt alone takes the whole step, as vLLM has
it. The flag `long_prefill_token_threshold` of the recipe replaces it; 0 is no bound.
"""


def gpu_settings(recipe: Recipe, context: int | None) -> Iterator[str]:
    """Arguments of vLLM on a GPU. `context`: tokens that the model takes; None: not known, 2,048 or more."""
    yield from ("--gpu-memory-utilization", SHARE)
    yield "--no-enable-flashinfer-autotune"  # it compiles kernels with nvcc and ninja, which a host need not have
    flags = {key.replace("-", "_"): value for key, value in recipe.engine.flags.items()}
    if flags.get("enable_chunked_prefill") is not False:
        yield from ("--long-prefill-token-threshold", str(min(LONG_PREFILL, context or LONG_PREFILL)))
    compilation = str(flags.get("compilation_config", ""))
    if not (GRAPH_FLAGS & flags.keys() or "capture_size" in compilation):
        sizes = capture_sizes(recipe.batching.sequences, recipe.batching.max_tokens)
        yield from ("--cudagraph-capture-sizes", *map(str, sizes))


def capture_sizes(max_requests: int, max_tokens: int) -> list[int]:
    """Batches with a graph: up to 512 tokens or a whole step; a full batch of one token each is among them.

    vLLM captures up to two tokens a request. A prompt above the largest size launches each kernel from Python, and with
    adapters 256 more: 4 to 7 ms a step by estimate, so a few hundred tokens have a graph also where few requests run.
    """
    most = min(max(max_requests, max_tokens), SIZES[-1])
    return sorted({size for size in SIZES if size <= most} | {min(max_requests, most), most})
