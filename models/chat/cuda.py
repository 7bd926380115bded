"""What vLLM is told on a GPU beside the recipe's own words. Flags of the recipe come after these, and win."""

from collections.abc import Iterator

from registry.recipes.definition import Recipe

SHARE = "0.01"
"""Of the card that vLLM wants to find free at its start. It asks for 0.92 by default, and even where the KV cache is
given in bytes: no second model would start. What may be loaded is decided by our budget, in bytes; nothing else reads
this value then."""
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Batches that CUDA graphs are captured for; others are filled up to the next one. vLLM's own list has 51, and with
LoRA each is captured twice: time of a start, and memory. No batch is filled up to twice its size here, and a step of
decoding mostly waits for the weights to be read. On an H100 an 8B shape with adapters took 17 s for 54 captures; vLLM's
own list took 24 s for 108, with 64 requests at once at 1.07 times the tokens a second, gateway and all."""
GRAPH_FLAGS = {
    "compilation_config",
    "cudagraph_capture_sizes",
    "enforce_eager",
    "max_cudagraph_capture_size",
    "speculative_config",
}
"""With one of them in the recipe, vLLM works the sizes out, or has none."""


def settings(recipe: Recipe) -> Iterator[str]:
    yield from ("--gpu-memory-utilization", SHARE)
    yield "--no-enable-flashinfer-autotune"  # it compiles kernels with nvcc and ninja, which a host need not have
    if not GRAPH_FLAGS & {key.replace("-", "_") for key in recipe.engine.flags}:
        yield from ("--cudagraph-capture-sizes", *map(str, capture_sizes(recipe.batching.sequences)))


def capture_sizes(max_requests: int) -> list[int]:
    """Up to two tokens a request and 512 in all, as vLLM has it; a full batch of one token each is among them."""
    most = min(2 * max_requests, SIZES[-1])
    return sorted({size for size in SIZES if size <= most} | {min(max_requests, most), most})
