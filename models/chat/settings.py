"""Turn a recipe into vLLM's command line arguments, which vLLM parses and checks."""

import json
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from models.estimate import kv_on_each
from models.flags import name_fault
from registry.base.json import read_object
from registry.base.processor import cores
from registry.errors import Unfit
from registry.files.context import SMALL_WEIGHTS, bytes_of_files, context_of, settle
from registry.files.shape import Shape, read_shape, text_config
from registry.files.weights import refuse_two_sets
from registry.recipes.definition import Recipe
from registry.recipes.fields import Flag

_BIAS, _NO_KERNEL = "experts that are chosen by a bias, which is left out there", "layers that have no kernel there"
UNFIT: Mapping[str, str] = {
    "Ernie4_5_MoeForCausalLM": _BIAS,
    "Ernie4_5_VLMoeForConditionalGeneration": _BIAS,
    "JambaForCausalLM": _NO_KERNEL,
    "MambaForCausalLM": _NO_KERNEL,
    "FalconMambaForCausalLM": _NO_KERNEL,
    "OlmoHybridForCausalLM": _NO_KERNEL,
}
"""Architectures that vLLM 0.32 runs wrongly or not at all on a CPU, with the reason.

The causes are its router of experts (`cpu_router`), Mamba-1's scan, and Triton.
"""

NATIVE_POSITIONS = frozenset({"Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration"})
"""Networks that pass one dimension too many to the CPU kernel for rotary positions, which then rotates the wrong
values.
"""


MAMBA_2 = frozenset(
    {
        "FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM", "Mamba2ForCausalLM", "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM", "Zamba2ForCausalLM",
    }
)  # fmt: skip
"""Networks whose CPU kernel gives only the last state of each prompt. With prefix caching vLLM needs earlier ones too,
and stores those of another request, or fails, which ends the engine.
"""


def _caches_prefixes(config: Mapping[str, Any]) -> bool:
    """Return whether prefixes can be cached on a CPU."""
    kinds = config.get("layer_types") or config.get("layers_block_type") or ["mamba"]
    return _architecture(config) not in MAMBA_2 or set(kinds) == {"attention"}


def cpu_flags(config: Mapping[str, Any]) -> Iterator[str]:
    """Iterate over vLLM's arguments on a CPU. The recipe's own flags follow them."""
    if _architecture(config) in NATIVE_POSITIONS:
        yield from ("--compilation-config", json.dumps({"custom_ops": ["all", "-rotary_embedding"]}))


def _architecture(config: Mapping[str, Any]) -> str:
    return str((config.get("architectures") or [""])[0])


def refuse_on_cpu(config: Mapping[str, Any], shape: Shape, where: str) -> None:
    """Raise Unfit for a network that does not run on a CPU. `where`: its folder or repository."""
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
"""Share of the card that vLLM requires to be free at its start. The default, 0.92, applies even if the KV cache is set
in bytes, so no second model could start. Our budget in bytes decides what may be loaded, and nothing else reads this
value.
"""
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Batch sizes with CUDA graphs; other batches are padded to the next size. vLLM's own list has 51 sizes, each captured
twice with LoRA, which costs start time and memory. Here no batch is padded to twice its size, and a decoding step
mostly waits for the weights anyway."""
GRAPH_FLAGS = {"cudagraph_capture_sizes", "enforce_eager", "max_cudagraph_capture_size", "speculative_config"}
"""Flags with which vLLM derives the sizes itself or has none; `compilation_config` may contain the same."""


LONG_PREFILL = 2048
"""Tokens of one prompt in a step while other requests are in the engine, whose streams wait for the step. A prompt
alone takes the whole step, as in vLLM. The recipe's flag `long_prefill_token_threshold` replaces this; 0 means no
bound.
"""


def gpu_settings(recipe: Recipe, context: int | None) -> Iterator[str]:
    """Iterate over vLLM's arguments on a GPU. `context`: the model's context length; None if unknown (2,048 or
    more)."""
    yield from ("--gpu-memory-utilization", SHARE)
    yield "--no-enable-flashinfer-autotune"  # it compiles kernels with nvcc and ninja, which the host may lack
    flags = {key.replace("-", "_"): value for key, value in recipe.engine.flags.items()}
    if flags.get("enable_chunked_prefill") is not False and not flags.get("no_enable_chunked_prefill"):
        yield from ("--long-prefill-token-threshold", str(min(LONG_PREFILL, context or LONG_PREFILL)))
    compilation = str(flags.get("compilation_config", ""))
    if recipe.parallel.tensor > 1 and not compilation:
        yield NO_FUSION
    if not (GRAPH_FLAGS & flags.keys() or "capture_size" in compilation):
        sizes = capture_sizes(recipe.batching.sequences, recipe.batching.max_tokens)
        yield from ("--cudagraph-capture-sizes", *map(str, sizes))


def capture_sizes(max_requests: int, max_tokens: int) -> list[int]:
    """Return the batch sizes with a graph: up to 512 tokens or a whole step, including a full batch of one token each.

    vLLM captures up to two tokens per request. A prompt above the largest size launches each kernel from Python, plus
    256 with adapters, an estimated 4 to 7 ms per step. So a few hundred tokens have a graph even if few requests run.
    """
    most = min(max(max_requests, max_tokens), SIZES[-1])
    return sorted({size for size in SIZES if size <= most} | {min(max_requests, most), most})


NO_DOMAIN = "none. Send it as a data: URL, or let the model's recipe name domains in engine.flags.allowed_media_domains"
"""An impossible host, so that clients cannot make the server fetch from hosts that they may not reach themselves. vLLM
quotes it in its error.
"""


NO_FUSION = "--compilation-config.pass_config.fuse_allreduce_rms=false"
"""Switches off vLLM's fusion of all-reduce and norm on several GPUs. It imports flashinfer, which initialises CUDA,
after which a slot can no longer be forked. The recipe's flag `compilation_config` replaces this."""


VIDEO_READERS = frozenset({"Dots3NoteForCausalLM"})
"""Networks whose preprocessor decodes the files of videos by itself, with torchcodec, as many frames as it likes."""
OTHER_DECODERS = ("torchcodec", "pynvvideocodec", "deepstream")
"""vLLM's decoders of videos beside OpenCV. For these there is no list of formats, and no count of the frames."""


def arguments(recipe: Recipe, path: Path, device: str, parser: Any) -> Namespace:
    """Return the namespace for vLLM's `AsyncEngineArgs.from_cli_args` and `build_app`.

    Raises Unfit with all faults of the recipe's flags, and for a network that does not run on a CPU.
    """
    if device == "cpu":
        refuse_on_cpu(read_object(path / "config.json"), read_shape(path), str(path))
    recipe = settle(recipe, path, "cpu" if device == "cpu" else "cuda")
    words = [*_settings(recipe, path, device), *_flags(recipe.engine.flags, parser)]

    def refuse(message: str) -> NoReturn:
        raise Unfit(f"vLLM does not take the flags of recipe {recipe.id}: {message}", [message], param="engine.flags")

    parser.error = refuse
    try:
        parsed: Namespace = parser.parse_args(words)
    except KeyError as fault:  # vLLM does not know a name in a flag's JSON, such as a mode of graphs
        name = str(fault.args[0])
        holds = [flag for flag, value in recipe.engine.flags.items() if name.lower() in str(value).lower()]
        refuse(f"it does not know '{name}', in {' or '.join(holds) or 'one of them'}; write a name that it knows.")
    if device == "cpu" and not _caches_prefixes(read_object(path / "config.json")):
        parsed.enable_prefix_caching = False
    if wrong := _video_fault(parsed.media_io_kwargs):
        refuse(wrong)
    return parsed


def _video_fault(media_io_kwargs: Mapping[str, Any] | None) -> str | None:
    """Return why videos would be read by a library whose formats and memory have no bound; None if by OpenCV."""
    chosen = {
        "VLLM_VIDEO_LOADER_BACKEND in the environment": os.environ.get("VLLM_VIDEO_LOADER_BACKEND"),
        **{
            f"media_io_kwargs.video.{name}": ((media_io_kwargs or {}).get("video") or {}).get(name)
            for name in ("backend", "video_backend")
        },
    }
    for place, name in chosen.items():
        if name in OTHER_DECODERS:
            return f"{place} is '{name}', which opens files of any kind and size: leave it out, for OpenCV."
    return None


def _settings(recipe: Recipe, path: Path, device: str) -> Iterator[str]:
    config = read_object(path / "config.json")  # empty if it cannot be read; vLLM reports why
    if not (path / "model.safetensors.index.json").is_file():  # vLLM reads all files
        files = sorted(path.glob("*.safetensors"))
        refuse_two_sets([file for file in files if not file.name.startswith("consolidated")])
    yield from ("--model", str(path), "--served-model-name", recipe.id)
    if recipe.dtype == "int8":
        fault = "dtype int8 is not one of vLLM's: use auto, float32, float16 or bfloat16"
        raise Unfit(f"The recipe's {fault}.", [fault], param="dtype")
    yield from ("--dtype", recipe.dtype)
    context = _context(recipe, config)
    if context:
        yield from ("--max-model-len", str(context))
    yield from ("--max-num-seqs", str(recipe.batching.sequences))
    yield from ("--max-num-batched-tokens", str(max(recipe.batching.max_tokens, recipe.batching.sequences)))
    yield from ("--kv-cache-memory-bytes", str(_kv_cache_bytes(recipe, path)))
    for name, count in recipe.parallel:
        if count > 1:
            yield from (f"--{name}-parallel-size", str(count))
    if device == "cpu":
        yield "--enforce-eager"
        yield from cpu_flags(config)
    else:
        yield from gpu_settings(recipe, context or context_of(recipe, path))
        if sleeps(recipe):
            yield "--enable-sleep-mode"
    places = recipe.memory.adapters
    if places.device:
        yield from ("--enable-lora", "--max-loras", str(places.device))
        yield from (
            "--max-cpu-loras",
            str(max(places.host, places.device + 1)),
            "--max-lora-rank",
            str(places.max_rank),
        )
        if device != "cpu" and recipe.dtype == "float32":
            raise Unfit(
                f"{recipe.id} takes adapters, and vLLM's kernels for adapters on a GPU compute in 16 bits only: set "
                "dtype to bfloat16, float16 or auto, or memory.adapters.device to 0.",
                ["dtype: float32 goes without adapters on a GPU"],
                param="dtype",
            )
        if recipe.dtype == "float32":
            # the store has adapters in 16 bits, so nothing is lost, and each step reads half as much
            yield from ("--lora-dtype", "bfloat16")
    yield from ("--scheduling-policy", "priority")
    if not {"allowed_media_domains", "allowed-media-domains"} & recipe.engine.flags.keys():
        yield from ("--allowed-media-domains", NO_DOMAIN)
    if _architecture(config) in VIDEO_READERS:
        yield from ("--limit-mm-per-prompt", '{"video": 0}')
    if any(path.glob("consolidated*.safetensors")):  # vLLM would use the weights in Mistral's layout instead
        yield from ("--config-format", "hf", "--load-format", "safetensors", "--tokenizer-mode", "hf")
    yield from _far_attention(config)
    yield "--no-use-tqdm-on-load"
    yield from ("--disable-log-stats", "--disable-uvicorn-access-log", "--disable-fastapi-docs")


def _context(recipe: Recipe, config: dict[str, Any]) -> int | None:
    """Return the context length in tokens; None for vLLM's own.

    With dynamically stretched positions vLLM 0.32 has only max_position_embeddings, but reports a multiple and reads
    foreign memory beyond them. Raises Unfit if the recipe asks for more than there are.
    """
    text = text_config(config)
    rope, there = text.get("rope_parameters") or text.get("rope_scaling"), text.get("max_position_embeddings")
    is_dynamic = isinstance(rope, dict) and "dynamic" in (rope.get("rope_type"), rope.get("type"))
    if not is_dynamic or not isinstance(there, int) or {"hf_overrides", "hf-overrides"} & recipe.engine.flags.keys():
        return recipe.context_length
    if (recipe.context_length or 0) > there:
        raise Unfit(
            f"context_length is {recipe.context_length:,}, but vLLM has {there:,} positions of this model, which are "
            "stretched dynamically: beyond them the model would answer at random. Ask for less.",
            param="context_length",
        )
    return recipe.context_length or there


def _far_attention(config: dict[str, Any]) -> Iterator[str]:
    """Set the attention scaling of a Ministral 3 beyond its original training positions, under vLLM's name for it."""
    text = text_config(config)
    rope = text.get("rope_parameters")
    if text.get("model_type") == "ministral3" and isinstance(rope, dict) and "llama_4_scaling_beta" in rope:
        scaling = {"beta": rope["llama_4_scaling_beta"]}
        scaling["original_max_position_embeddings"] = rope.get("original_max_position_embeddings")
        named = {"llama_4_scaling": scaling}
        yield from ("--hf-overrides", json.dumps(named if text is config else {"text_config": named}))


def swap_tokens(recipe: Recipe) -> int | None:
    """Return the maximum tokens of a step while adapters are moving, at least one per request. None for no change."""
    tokens = recipe.batching.tokens_while_swapping
    return None if tokens is None else max(tokens, recipe.batching.sequences)


def critical_tokens(recipe: Recipe) -> int:
    """Return the maximum tokens of a step while critical requests arrive, at least one per request."""
    return max(recipe.batching.critical_step, recipe.batching.sequences)


def _kv_cache_bytes(recipe: Recipe, path: Path) -> int:
    """Return the bytes of the KV cache on each device. Reads the network's shape only if the recipe does not set it."""
    if recipe.memory.kv_cache is not None and recipe.parallel.devices == 1:
        return int(recipe.memory.kv_cache)
    return kv_on_each(recipe, read_shape(path))


def sleeps(recipe: Recipe) -> bool:
    """Return whether the engine can sleep, on a GPU.

    Only with one worker: with several, adapters were silently lost in a sleep (vLLM issue 53888).
    """
    return recipe.residency.sleep != "never" and recipe.parallel.devices == 1


def _flags(flags: dict[str, Flag], parser: Any) -> Iterator[str]:
    faults = []
    words: list[str] = []
    known = parser._option_string_actions
    names = {option.removeprefix("--").replace("-", "_") for option in known if option.startswith("--")}
    for key, value in flags.items():
        name = key.replace("_", "-")
        option, negation = f"--{name}", f"--no-{name}"
        if fault := name_fault(key, names):
            faults.append(f"{key}: {fault}")
        elif isinstance(value, bool):
            if not value and negation not in known and known[option].default:
                faults.append(f"{key}: cannot be switched off")
            words += [option] if value else [negation] if negation in known else []
        elif isinstance(value, list):
            words += [option, *map(str, value)]
        else:
            words += [option, str(value)]
    if faults:
        # the gateway and its log get only the message of a load's error
        raise Unfit(f"The recipe's engine.flags do not fit vLLM: {'; '.join(faults)}.", faults, param="engine.flags")
    yield from words


def threads(path: Path, workers: int = 1) -> int:
    """Return the compute threads of a worker on the CPU: one for small weights, where a second one costs more than it
    gains.

    Measured with 1.5 MB of weights on 2 cores, one of them busy: a step of 16 sequences takes 2.6 ms with one thread
    and 5.2 ms with two.
    """
    return 1 if bytes_of_files(path) < SMALL_WEIGHTS else max(1, cores() // workers)
