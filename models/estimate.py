"""Estimate a model's memory from its files and recipe alone; each term is stated.

    weights          values in the files x bytes of the dtype that the engine computes in
    kv_cache         as the recipe says; else room for full contexts (see `default_kv_cache`)
    adapter_places   places x largest rank x bytes x (inputs + outputs) of all linear layers, embedding and head; on a
                     GPU one more, for the buffer through which an adapter is written (`chat.vllm.adapters.gpu_copy`)
    host_adapters    the same per adapter that host memory may stage; beside a GPU, the next power of two
    activations      what one engine step needs at its limits
    overhead         the process itself: libraries, CUDA context, compiled code (`models.engines`)

An estimate decides only before the first load: the measured figure replaces it (`State.models.measured`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models.engines import ENGINES, GIB, MIB, DeviceKind
from models.flags import flag_fault
from registry.errors import Unfit
from registry.files.dtypes import settle
from registry.files.shape import DTYPE_BYTES, Shape, read_shape
from registry.files.weights import Weights, read_weights
from registry.recipes.definition import Recipe, Task

FULL_CONTEXTS = 8
DEFAULT_KV_CACHE = 4 * GIB
SECOND_FRAMES = 50
"""Whisper's encoder turns a second of a window, padding included, into so many frames."""
BEAMS = 5
"""Beams of faster-whisper, unless the flag `beam_size` says otherwise."""

ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of reading an untrusted model's files: a number where a list belongs, a size of zero, one of 400 digits."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by term. On a CPU everything lies in host memory, so there `total` is `host`."""

    kind: DeviceKind
    weights: int
    kv_cache: int
    adapter_places: int
    activations: int
    overhead: int
    host_adapters: int
    host_overhead: int
    notes: Mapping[str, str]
    """How each term came about."""

    @property
    def total(self) -> int:
        """Bytes on the model's own device."""
        on_device = self.weights + self.kv_cache + self.adapter_places + self.activations + self.overhead
        return on_device + (self.host_adapters if self.kind == "cpu" else 0)

    @property
    def host(self) -> int:
        """Bytes of host memory."""
        return self.total if self.kind == "cpu" else self.host_adapters + self.host_overhead

    def explain(self) -> str:
        """The sum, one term a line: MiB, name, and how it came about. Terms of zero are left out."""
        terms = ["weights", "kv_cache", "adapter_places", "activations", "overhead"]
        beside = ["host_adapters", "host_overhead"]
        terms += beside if self.kind == "cpu" else []
        lines = [*self._lines(terms), f"{_mib(self.total)}  total on the device ({self.kind})"]
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
    """Estimate `recipe` with its weights in folder `path`. Unfit when the folder cannot be read as a model."""
    try:
        shape = None if recipe.task is Task.TRANSCRIBE else read_shape(path)
        return estimate_of(settle(recipe, path, kind), read_weights(path), shape, kind)
    except ODD as error:
        raise Unfit(
            f"The files in {path} say what no model's say ({type(error).__name__}): look at its config.json.",
            code="bad_config",
        ) from error


def estimate_of(recipe: Recipe, weights: Weights, shape: Shape | None, kind: DeviceKind) -> Estimate:
    """Estimate without files. `recipe`: its dtype settled; `shape`: None for speech. Unfit for bad flags."""
    if fault := flag_fault(recipe):
        raise Unfit(f"This is not a recipe: {fault}.", code="bad_recipe", param="engine.flags")
    cast = _float_bytes(recipe, kind)
    notes = {"weights": f"{weights.parameters:,} parameters, {_dtype_words(recipe, cast)}"}
    kv_cache = place = places = buffers = host_place = host_places = 0
    if shape is not None and recipe.task is Task.CHAT:
        kv_cache = default_kv_cache(recipe, shape) if recipe.memory.kv_cache is None else int(recipe.memory.kv_cache)
        per_token = kv_bytes_per_token(recipe, shape)
        origin = "as the recipe says" if recipe.memory.kv_cache is not None else "room for full contexts"
        notes["kv_cache"] = f"{origin}, {kv_cache // per_token:,} tokens of {per_token:,} bytes"
        room = recipe.memory.adapters
        places, host_places = room.device, room.host if room.device else 0
        # on a CPU an adapter's values stay 16 bits wide beside float32: see `models.chat.settings`
        each = 2 if kind == "cpu" else DTYPE_BYTES.get(recipe.dtype, 2)
        place = adapter_place_bytes(weights, shape, room.max_rank, each)
        buffers = 1 if places and kind == "cuda" else 0
        and_buffer = " and a buffer for the next adapter" if buffers else ""
        notes["adapter_places"] = f"{places} places of {place:,} bytes (rank {room.max_rank}){and_buffer}"
        # beside a GPU an adapter lies in a pinned buffer, and torch pins blocks of powers of two
        host_place = place if kind == "cpu" else 1 << (place - 1).bit_length()
        notes["host_adapters"] = f"up to {host_places} staged adapters of {host_place:,} bytes"
    overhead, host_overhead = ENGINES[recipe.engine.name].overhead[kind]
    activations = _activations(recipe, weights, shape, cast or 4)
    at_once = recipe.batching.sequences if recipe.task is Task.CHAT else recipe.batching.max_requests
    notes["activations"] = f"one step of {at_once} requests and {recipe.batching.max_tokens} " + (
        "seconds of audio" if shape is None else "tokens"
    )
    notes["overhead"] = notes["host_overhead"] = f"{recipe.engine.name} on {kind}, beside all else"
    if recipe.memory.overhead is not None:
        overhead, activations = int(recipe.memory.overhead), 0
        notes["overhead"] = "as the recipe says, activations included"
    return Estimate(
        kind=kind,
        weights=weights.loaded_bytes(cast),
        kv_cache=kv_cache,
        adapter_places=(places + buffers) * place,
        activations=activations,
        overhead=overhead,
        host_adapters=host_places * host_place,
        host_overhead=host_overhead,
        notes=notes,
    )


def kv_bytes_per_token(recipe: Recipe, shape: Shape) -> int:
    """layers x 2 x kv heads x head size x bytes of the cache's dtype (flag `kv_cache_dtype`, else the model's)."""
    cache = str(recipe.engine.flags.get("kv_cache_dtype", recipe.engine.flags.get("kv-cache-dtype", "auto")))
    each = 1 if cache.startswith("fp8") else DTYPE_BYTES.get(recipe.dtype, 2)
    return shape.kv_values_per_token * each


def default_kv_cache(recipe: Recipe, shape: Shape) -> int:
    """Without `memory.kv_cache`: eight full contexts within 4 GiB, and never less than one and a quarter."""
    one = kv_bytes_per_token(recipe, shape) * (recipe.context_length or shape.context)
    return max(one * 5 // 4, min(one * min(FULL_CONTEXTS, recipe.batching.max_requests), DEFAULT_KV_CACHE))


def adapter_place_bytes(weights: Weights, shape: Shape, rank: int, each: int) -> int:
    """Bytes of one place: rank x (inputs + outputs) of every linear layer, the embedding and the head.

    vLLM makes room for all of them, whatever an adapter's own rank and targets are. 8B Llama: 5.5 MB per unit of rank.
    """
    linear = weights.linear or shape.linear
    ends = 2 * (shape.vocabulary + shape.hidden)
    return rank * each * (sum(inputs + outputs for inputs, outputs in linear) + ends)


def _activations(recipe: Recipe, weights: Weights, shape: Shape | None, each: float) -> int:
    """A step's largest live tensors: four of the hidden size and two of the feed-forward size for each token.

    Chat adds the logits of each request, in float32 and three times (raw, processed, sorted). Speech adds keys and
    values of the decoder's layers for the frames of each window, once for each beam.
    """
    if shape is None:
        windows = max(1, recipe.batching.max_tokens // recipe.window.padded)
        beams = int(str(recipe.engine.flags.get("beam_size", BEAMS)))
        if beams < 1:
            raise Unfit("This is not a recipe: beam_size must be 1 or more.", code="bad_recipe", param="engine.flags")
        values = weights.hidden * (12 + 2 * weights.decoder_layers * beams)
        return int(windows * recipe.window.padded * SECOND_FRAMES * values * each)
    step = recipe.batching.max_tokens * (4 * shape.hidden + 2 * shape.feed_forward) * each
    logits = 3 * 4 * recipe.batching.sequences * shape.vocabulary if recipe.task is Task.CHAT else 0
    return int(step) + logits


def _float_bytes(recipe: Recipe, kind: DeviceKind) -> float | None:
    """Bytes of each float weight once loaded; None: as in the file.

    int8: matrices are one byte a value, scales, biases and norms stay floats, 1.1 in all. auto: vLLM computes in
    16 bits whatever the file holds; on a CPU the other two compute in float32, on CUDA as the file is.
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
