"""Estimate a model's memory from its files and recipe, term by term.

    weights          values in the files x bytes of the dtype that the engine computes in
    kv_cache         as in the recipe; else room for full contexts (see `default_kv_cache`)
    adapter_places   places x largest rank x bytes x (inputs + outputs) of all linear layers, embedding and head; on a
                     GPU one more, for the buffer through which adapters are copied (`chat.vllm.adapters.gpu_copy`)
    host_adapters    the same for each adapter staged in host memory; with a GPU rounded up to a power of two, or to
                     blocks of an arena
    activations      memory of one engine step at its limits
    overhead         the process itself: libraries, CUDA context, compiled code (`models.engines`)

With several devices each holds weights / (tensor x pipeline), KV cache / (heads' parts x pipeline), adapter places for
its part of the layers, and activations and overhead of its own process; each process stages its own adapters.

Estimates are used only before the first load, after which measurements replace them (`State.models.measured`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.engines import ENGINES, GIB, MIB, DeviceKind
from models.flags import flag_fault
from models.text.unpadded.buckets import MOST_BYTES
from registry.errors import Unfit
from registry.files.context import settle
from registry.files.shape import DTYPE_BYTES, Shape, read_shape
from registry.files.weights import Weights, read_weights
from registry.recipes.definition import Parallel, Recipe, Task

FULL_CONTEXTS = 8
DEFAULT_KV_CACHE = 4 * GIB
ONE = Parallel()
MOST_TENSOR = 64
ARENA_PAGE, ARENA_SPARE = 2 * MIB, 2
"""Page size of `models.chat.vllm.adapters.arena`, and its blocks for files that are being read."""
SECOND_FRAMES = 50
"""Frames of Whisper's encoder per second of a padded window."""
BEAMS = 5
"""Default beams of faster-whisper (flag `beam_size`)."""

ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors from invalid model files: a number instead of a list, a size of zero, one with 400 digits."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by term, on each device. On a CPU everything is in host memory, so `total` equals `host`."""

    kind: DeviceKind
    weights: int
    kv_cache: int
    adapter_places: int
    activations: int
    overhead: int
    host_adapters: int
    """Like `host_overhead`, the sum over the processes of all devices."""
    host_overhead: int
    notes: Mapping[str, str]
    """The computation of each term, in words."""
    devices: int = 1

    @property
    def on_each(self) -> int:
        """Bytes on each of the model's devices."""
        on_device = self.weights + self.kv_cache + self.adapter_places + self.activations + self.overhead
        return on_device + (-(-self.host_adapters // self.devices) if self.kind == "cpu" else 0)

    @property
    def total(self) -> int:
        """Bytes on all of the model's devices."""
        return self.devices * self.on_each

    @property
    def host(self) -> int:
        """Bytes of host memory."""
        return self.total if self.kind == "cpu" else self.host_adapters + self.host_overhead

    def explain(self) -> str:
        """Return the sum with one non-zero term per line: MiB, name, and how it was computed."""
        terms = ["weights", "kv_cache", "adapter_places", "activations", "overhead"]
        beside = ["host_adapters", "host_overhead"]
        terms += beside if self.kind == "cpu" else []
        where = "the device" if self.devices == 1 else f"each of {self.devices} devices"
        lines = [*self._lines(terms), f"{_mib(self.on_each)}  total on {where} ({self.kind})"]
        if self.kind != "cpu":
            lines += [*self._lines(beside), f"{_mib(self.host)}  total in host memory"]
        return "\n".join(lines)

    def _lines(self, terms: list[str]) -> list[str]:
        return [
            f"{_mib(getattr(self, term))}  {term.replace('_', ' ')}: {self.notes[term]}"
            for term in terms
            if getattr(self, term)
        ]


def estimate(recipe: Recipe, path: Path, kind: DeviceKind) -> Estimate:
    """Estimate `recipe` with its weights in folder `path`. Raises Unfit if that is not a valid model."""
    try:
        shape = None if recipe.task is Task.TRANSCRIBE else read_shape(path)
        return estimate_of(settle(recipe, path, kind), read_weights(path), shape, kind)
    except ODD as error:
        raise Unfit(
            f"The files in {path} hold impossible values ({type(error).__name__}): check its config.json.",
            code="bad_config",
        ) from error


def estimate_of(recipe: Recipe, weights: Weights, shape: Shape | None, kind: DeviceKind) -> Estimate:
    """Estimate without files. Raises Unfit for bad flags.

    recipe: with its dtype settled. shape: None for speech.
    """
    if fault := flag_fault(recipe):
        raise Unfit(f"The recipe cannot be used: {fault}.", code="bad_recipe", param="engine.flags")
    cast, parallel = _float_bytes(recipe, kind), recipe.parallel
    parts = parallel.tensor * parallel.pipeline
    spread = f", {parallel.words()}" if parallel.devices > 1 else ""
    notes = {"weights": f"{weights.parameters:,} parameters, {_dtype_words(recipe, cast)}{spread}"}
    kv_cache = adapter_places = host_adapters = 0
    if shape is not None and recipe.task is Task.CHAT:
        check_parallel(recipe, shape, kind)
        kv_cache, per_token = kv_on_each(recipe, shape), kv_bytes_per_token(recipe, shape)
        origin = "as the recipe says" if recipe.memory.kv_cache is not None else "room for full contexts"
        tokens = whole_kv_cache(recipe, shape) // per_token
        notes["kv_cache"] = f"{origin}, {tokens:,} tokens of {per_token:,} bytes{spread}"
        adapter_places, notes["adapter_places"] = _adapter_places(recipe, weights, shape, kind)
        host_adapters, notes["host_adapters"] = _host_adapters(recipe, weights, shape, kind)
    overhead, host_overhead = ENGINES[recipe.engine.name].overhead[kind]
    activations = _activations(recipe, weights, shape, cast or 4, kind)
    at_once = recipe.batching.sequences if recipe.task is Task.CHAT else recipe.batching.max_requests
    notes["activations"] = f"one step of {at_once} requests and {recipe.batching.max_tokens} " + (
        "seconds of audio" if shape is None else "tokens"
    )
    notes["overhead"] = notes["host_overhead"] = f"{recipe.engine.name} on {kind}, beside all else"
    if recipe.residency.sleep_prepared and recipe.task is Task.CHAT and kind == "cuda":
        prepared = weights.loaded_bytes(cast)
        notes["host_overhead"] += ", with the memory of its sleep"
    else:
        prepared = 0
    if recipe.memory.overhead is not None:
        overhead, activations = int(recipe.memory.overhead), 0
        notes["overhead"] = "as the recipe says, activations included"
    return Estimate(
        kind=kind,
        weights=-(-weights.loaded_bytes(cast) // parts),
        kv_cache=kv_cache,
        adapter_places=adapter_places,
        activations=activations,
        overhead=overhead,
        host_adapters=host_adapters,
        host_overhead=parallel.devices * host_overhead + prepared,
        notes=notes,
        devices=parallel.devices,
    )


def _adapter_places(recipe: Recipe, weights: Weights, shape: Shape, kind: DeviceKind) -> tuple[int, str]:
    """Return the bytes of adapters on each device, and how they were computed."""
    room = recipe.memory.adapters
    place = adapter_place_bytes(weights, shape, room.max_rank, _adapter_float_bytes(recipe, kind), recipe.parallel)
    buffers = 1 if room.device and kind == "cuda" else 0
    and_buffer = " and a buffer for the next adapter" if buffers else ""
    note = f"{room.device} places of {place:,} bytes (rank {room.max_rank}){and_buffer}"
    return (room.device + buffers) * place, note


def _host_adapters(recipe: Recipe, weights: Weights, shape: Shape, kind: DeviceKind) -> tuple[int, str]:
    """Return the bytes of adapters in host memory, and how they were computed.

    Each process has whole adapters; with a GPU in pinned memory, which torch rounds up to a power of two.
    """
    room = recipe.memory.adapters
    places = room.host if room.device else 0
    place = adapter_place_bytes(weights, shape, room.max_rank, _adapter_float_bytes(recipe, kind))
    if kind == "cuda" and room.arena:
        place = -(-place // ARENA_PAGE) * ARENA_PAGE
        places += ARENA_SPARE if places else 0
    elif kind == "cuda":
        place = 1 << (place - 1).bit_length()
    place *= recipe.parallel.tensor * recipe.parallel.pipeline
    return places * place, f"up to {places} staged adapters of {place:,} bytes"


def _adapter_float_bytes(recipe: Recipe, kind: DeviceKind) -> int:
    """Return the bytes of an adapter's number. On a CPU they stay in 16 bits, even with float32 weights."""
    return 2 if kind == "cpu" else DTYPE_BYTES.get(recipe.dtype, 2)


def check_parallel(recipe: Recipe, shape: Shape, kind: DeviceKind) -> None:
    """Raise Unfit if the network cannot be divided as the recipe says."""
    wrong = next(_parallel_faults(recipe.parallel, shape, kind), None)
    if wrong is not None:
        key, why = wrong
        raise Unfit(f"parallel.{key} is {getattr(recipe.parallel, key)}: {why}", code="bad_recipe", param="parallel")


def _parallel_faults(parallel: Parallel, shape: Shape, kind: DeviceKind) -> Iterator[tuple[str, str]]:
    tensor, pipeline = parallel.tensor, parallel.pipeline
    if parallel.devices == 1:
        return
    fitting = [n for n in range(1, MOST_TENSOR + 1) if shape.heads % n == 0 and _shares(shape.kv_heads, n)]
    write = f"write one of {', '.join(map(str, fitting))}."
    if shape.heads % tensor:
        over = f"{shape.heads} = {tensor} x {shape.heads // tensor} + {shape.heads % tensor}"
        yield "tensor", f"its {shape.heads} attention heads do not divide by that ({over}); {write}"
    if not _shares(shape.kv_heads, tensor):
        yield "tensor", f"its {shape.kv_heads} heads of keys and values cannot be divided equally; {write}"
    if pipeline > 1 and kind == "cpu":
        yield "pipeline", "vLLM's CPU build does not start with that; write 1, and use parallel.tensor."
    if pipeline > shape.layers:
        yield "pipeline", f"it has {shape.layers} layers; write no more than that."
    if parallel.data > 1 and kind == "cpu":
        yield "data", "on a CPU there is one engine; write 1, and use parallel.tensor."
    if parallel.data > 1 and not shape.experts:
        yield "data", "it has no experts to distribute; write 1, and use parallel.tensor."


def _shares(kv_heads: int, tensor: int) -> bool:
    """Return whether all devices have equally many heads of keys and values."""
    return kv_heads % tensor == 0 or tensor % kv_heads == 0


def whole_kv_cache(recipe: Recipe, shape: Shape) -> int:
    """Return the bytes of the KV cache on all devices, without duplicates."""
    return default_kv_cache(recipe, shape) if recipe.memory.kv_cache is None else int(recipe.memory.kv_cache)


def kv_on_each(recipe: Recipe, shape: Shape) -> int:
    """Return the bytes of the KV cache on each device. With fewer heads than devices, some are duplicated."""
    shares = 1 if shape.latent else min(recipe.parallel.tensor, shape.kv_heads)
    return -(-whole_kv_cache(recipe, shape) // (shares * recipe.parallel.pipeline))


def kv_bytes_per_token(recipe: Recipe, shape: Shape) -> int:
    """Return layers x 2 x kv heads x head size x bytes of the cache's dtype (`kv_cache_dtype` or the model's)."""
    cache = str(recipe.engine.flags.get("kv_cache_dtype", recipe.engine.flags.get("kv-cache-dtype", "auto")))
    each = 1 if cache.startswith("fp8") else DTYPE_BYTES.get(recipe.dtype, 2)
    return shape.kv_values_per_token * each


def default_kv_cache(recipe: Recipe, shape: Shape) -> int:
    """Return the default KV cache: eight full contexts within 4 GiB, and at least one and a quarter."""
    one = kv_bytes_per_token(recipe, shape) * (recipe.context_length or shape.context)
    return max(one * 5 // 4, min(one * min(FULL_CONTEXTS, recipe.batching.max_requests), DEFAULT_KV_CACHE))


def adapter_place_bytes(weights: Weights, shape: Shape, rank: int, each: int, parallel: Parallel = ONE) -> int:
    """Return the bytes of a place: rank x (inputs + outputs) of every linear layer, embedding and head.

    vLLM allocates all of them, whatever an adapter's rank and targets are. 8B Llama: 5.5 MB per unit of rank. Tensor
    parallelism divides one side of each layer, depending on the layer; the smaller side is assumed.
    """
    linear, tensor = weights.linear or shape.linear, parallel.tensor
    ends = 2 * (shape.vocabulary + shape.hidden)
    values = sum(max(one, other) + -(-min(one, other) // tensor) for one, other in linear) + ends
    return rank * each * -(-values // parallel.pipeline)


def _activations(recipe: Recipe, weights: Weights, shape: Shape | None, each: float, kind: DeviceKind) -> int:
    """Return a step's largest live tensors: per token, four of the hidden and two of the feed-forward size.

    Chat adds the logits of each request, three times in float32 (raw, processed, sorted). Speech adds keys and values
    of the decoder's layers for the frames of each window, once for each beam.
    """
    if shape is None:
        windows = max(1, recipe.batching.max_tokens // recipe.window.padded)
        beams = int(str(recipe.engine.flags.get("beam_size", BEAMS)))
        if beams < 1:
            raise Unfit(
                "The recipe cannot be used: beam_size must be 1 or more.", code="bad_recipe", param="engine.flags"
            )
        values = weights.hidden * (12 + 2 * weights.decoder_layers * beams)
        return int(windows * recipe.window.padded * SECOND_FRAMES * values * each)
    step = recipe.batching.max_tokens * (4 * shape.hidden + 2 * shape.feed_forward) * each
    logits = 3 * 4 * recipe.batching.sequences * shape.vocabulary if recipe.task is Task.CHAT else 0
    captured = recipe.task is not Task.CHAT and kind == "cuda" and bool(recipe.engine.flags.get("cuda_graphs"))
    return int(step) + logits + (MOST_BYTES if captured else 0)


def _float_bytes(recipe: Recipe, kind: DeviceKind) -> float | None:
    """Return the bytes of each float weight once loaded; None if as in the file.

    int8: matrices take one byte per value, while scales, biases and norms stay floats, 1.1 in all. auto: vLLM always
    computes in 16 bits; the other two compute in float32 on a CPU, and as in the file on CUDA.
    """
    if recipe.dtype == "int8":
        return 1.1
    if recipe.dtype != "auto":
        return DTYPE_BYTES[recipe.dtype]
    if recipe.engine.name == "vllm":
        return 2
    return 4 if kind == "cpu" else None


def _dtype_words(recipe: Recipe, cast: float | None) -> str:
    if recipe.dtype != "auto":
        return recipe.dtype
    return "as in the file" if cast is None else f"{cast} bytes each"


def _mib(count: int) -> str:
    return f"{count / MIB:10,.1f} MiB"
