"""Propose a chat model's recipe for this machine: context, cache, adapter places, parsers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.files.detect import Detection
from launch.files.listing import Listing, stored_dtype
from launch.proposal.code import check_code, code_of_chat
from launch.proposal.draft import Draft, Machine
from launch.proposal.families import REASONING_PAGE, TOOL_PAGE, family_of, has_parser, shows_tools
from launch.request import WorkingSet
from models.chat import settings
from models.chat.vllm import source as vllm_source
from models.engines import MIB
from models.estimate import adapter_place_bytes, estimate_of, kv_bytes_per_token
from registry.base.processor import features
from registry.base.wording import size_words
from registry.errors import Unfit
from registry.files.context import settle_by_size
from registry.files.shape import Shape, nested_configs, shape_of, text_config
from registry.files.weights import Weights
from registry.recipes.fields import Flag

TIED = '{"tie_word_embeddings": true}'
"""A value of hf_overrides with which vLLM uses the embedding as the output; it does not scale positions."""
TIED_BY_DEFAULT = frozenset(
    (
        "gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "mpt",
        "starcoder2", "smollm3", "ernie4_5", "lfm2",
    )
)  # fmt: skip
"""Values of `model_type` for which transformers uses the embedding as output unless config.json denies it."""
AS_IT_IS = frozenset(
    ("default", "longrope", "su", "llama3", "mrope", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "dynamic", "")
)
"""Kinds of position scaling whose config already has the scaled length, or that scale nothing."""
KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len", "n_ctx",
)  # fmt: skip
"""Keys of the context length, of which the smallest counts."""
PROCESSORS = "chat_template.json"
"""File for a processor's chat template; some trainers also write a text model's template there."""
WHOLE = "model_max_length"
"""Takes precedence over KEYS: Command R's, whose other values are lower."""


def longest_context(config: Mapping[str, Any]) -> int | None:
    """Return the longest context in tokens, or None if the config does not give it."""
    inner = text_config(config)
    keys = (WHOLE,) if inner.get(WHOLE) else KEYS
    lengths = [int(inner[key]) for key in keys if isinstance(inner.get(key), int)]
    if not lengths:
        return None
    longest = min(lengths)
    rope = inner.get("rope_parameters") or inner.get("rope_scaling")
    if not isinstance(rope, dict):
        return longest
    if all(isinstance(value, dict) for value in rope.values()):  # one entry for each kind of layer
        return longest
    kind = str(rope.get("rope_type") or rope.get("type") or "")
    factor = rope.get("factor")
    if kind in AS_IT_IS or "gemma3" in str(inner.get("model_type")) or not isinstance(factor, int | float):
        return longest
    return int(longest * factor)


def unstretched(config: Mapping[str, Any]) -> int | None:
    """Return the tokens up to which a longrope model uses its positions for short texts.

    vLLM chooses one kind of positions for all texts, by the context length. None if there is only one kind.
    """
    inner = text_config(config)
    rope = inner.get("rope_parameters") or inner.get("rope_scaling")
    if not isinstance(rope, dict) or str(rope.get("rope_type") or rope.get("type")) not in ("longrope", "su"):
        return None
    original = inner.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    return original if isinstance(original, int) and original > 0 else None


def check_context(requested: object, longest: int | None, flags: Mapping[str, Flag]) -> None:
    """Raise Unfit if more tokens are requested than the model was trained for."""
    if {flags.get("hf_overrides"), flags.get("hf-overrides")} - {None, TIED}:
        return
    if isinstance(requested, int) and longest is not None and requested > longest:
        raise Unfit(
            f"context_length is {requested:,}, but the model was made for {longest:,} tokens. Use fewer, or a model "
            "with a longer context; its card may say how to extend it (engine.flags.hf_overrides).",
            code="context_too_long",
            param="context_length",
        )


LEAST: Mapping[str, int] = {
    "awq": 75, "gptq": 60, "fp8": 75, "fbgemm_fp8": 80, "modelopt": 80, "modelopt_fp4": 75, "mxfp4": 80,
    "compressed-tensors": 70, "experts_int8": 80, "moe_wna16": 70, "torchao": 75,
}  # fmt: skip
CPU_METHODS = frozenset({"awq", "gptq", "inc", "auto-round"})
INTEGER_FORMATS = frozenset({"int-quantized", "pack-quantized"})
"""Formats of compressed-tensors."""
ON_CPU = "A CPU supports AWQ, GPTQ and compressed-tensors with integers: add one of those, or the original."


def _quantization(config: Mapping[str, Any]) -> dict[str, Any] | None:
    configs = (config_part.get("quantization_config") for config_part in nested_configs(config))
    return next((config for config in configs if isinstance(config, dict)), None)


def quantization_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return a config's quantization method and format; ('', '') if it has none."""
    inner = _quantization(config)
    if inner is None:
        return "", ""
    return str(inner.get("quant_method") or "unknown").lower(), str(inner.get("format") or "")


def _packed_bits(config: Mapping[str, Any]) -> set[int]:
    """Return the bits of weights that are packed into larger integers; empty if there are none, or if unknown."""
    inner = _quantization(config) or {}
    groups = inner.get("config_groups")
    if inner.get("format") == "pack-quantized" and isinstance(groups, dict):
        weights = [group.get("weights") for group in groups.values() if isinstance(group, dict)]
        found = [one.get("num_bits") for one in weights if isinstance(one, dict)]
    else:
        found = [inner.get("bits") or inner.get("w_bit")]
    return {bits for bits in found if isinstance(bits, int)}


def check_quantization(config: Mapping[str, Any], machine: Machine) -> str:
    """Describe the quantization; '' if none. Raises Unfit if it cannot run here."""
    method, form = quantization_of(config)
    if not method:
        return ""
    description = f"{method}, {form}" if form else method
    supported = vllm_source.quantizations()
    if supported and method not in supported and method not in CPU_METHODS:
        few = ", ".join(sorted({"awq", "gptq", "fp8", "compressed-tensors", "mxfp4"} & supported))
        raise Unfit(
            f"Its weights are quantized as {description}, which the installed vLLM does not read. It reads {few}, or "
            "add the original.",
            code="unknown_quantization",
            param="source",
        )
    if machine.kind == "cpu":
        integers = method == "compressed-tensors" and form in INTEGER_FORMATS
        amx = method in ("fp8", "compressed-tensors") and "amx_tile" in features()
        if method not in CPU_METHODS and not integers and not amx:
            raise Unfit(
                f"Its weights are quantized as {description}, which this CPU does not support. {ON_CPU}",
                code="quantization_not_here",
                param="source",
            )
        if other := _packed_bits(config) - {4}:
            raise Unfit(
                f"Its weights are quantized as {description} with {max(other)} bits, and a CPU unpacks only 4. Add one "
                "with 4 bits, or with 8 as compressed-tensors, int-quantized, or the original.",
                code="quantization_not_here",
                param="source",
            )
    elif machine.capability is not None and machine.capability < LEAST.get(method, 0):
        have, least = machine.capability / 10, LEAST[method] / 10
        raise Unfit(
            f"Its weights are quantized as {description}, which needs compute capability {least}; this GPU has {have}. "
            "Add the original, or one that is quantized with AWQ or GPTQ.",
            code="quantization_not_here",
            param="source",
        )
    return description


USUAL_CONTEXT = 32_768
"""Longest context that is proposed. Longer ones cost KV cache that few requests use."""
LEAST_CONTEXT = 512
PLACES, STAGED, RANK = 4, 16, 16
SHARE_FOR_PLACES = SHARE_FOR_STATES = 8
"""Divisors of the budget for the most that is proposed for adapter places, and for states."""
REQUESTS = {"cpu": 16, "cuda": 64}
STEP_TOKENS = {"cpu": 2048, "cuda": 8192}
BLOCKS_MORE = 5 / 4
"""Reserve for vLLM's blocks, since it refuses a cache that does not hold one whole context."""


@dataclass(frozen=True, slots=True)
class ChatFacts:
    detected: Detection
    listing: Listing
    weights: Weights
    name: str
    """The makers' name for it, which identifies the family."""


def propose_chat(draft: Draft, facts: ChatFacts, machine: Machine, working_set: WorkingSet) -> None:
    """Propose values. Raises Unfit for unusable quantization, attention, context or code."""
    check_code(draft, facts.listing, code_of_chat(facts.listing))
    config = facts.listing.json("config.json")
    quantized = check_quantization(config, machine)
    shape = shape_of(config, f"config.json of {facts.listing.where}")
    if machine.kind == "cpu":
        settings.refuse_on_cpu(config, shape, facts.listing.where)
    dtype = _dtype(draft, facts, machine, quantized)
    draft.pick("batching.max_requests", _requests(shape, machine), "requests that run at once")
    device = "CPU" if machine.kind == "cpu" else "GPU"
    draft.pick("batching.max_tokens", STEP_TOKENS[machine.kind], f"tokens in one step on a {device}")
    if machine.kind == "cpu" and quantized.endswith(", int-quantized"):
        # vLLM packs them, and LoRA then finds no weights
        why = "on a CPU, LoRA does not work with 8-bit weights, and a load would not finish"
        draft.pick("memory.adapters", {"device": 0, "host": 0}, why)
    else:
        _adapter_places(draft, facts, shape, machine)
    _cache(draft, facts, shape, machine, working_set, dtype)
    _output(draft, facts)
    _template(draft, facts.listing)
    _parsers(draft, facts)


def _output(draft: Draft, facts: ChatFacts) -> None:
    """Tie the output to the embedding if neither the files nor config.json say so."""
    config = facts.listing.json("config.json")
    family = str(config.get("model_type"))
    if not facts.weights.head and "tie_word_embeddings" not in config and family in TIED_BY_DEFAULT:
        why = f"lm_head.weight is not in the files, and the output of a {family} is its embedding by default"
        draft.pick("engine.flags.hf_overrides", TIED, why)


def _template(draft: Draft, listing: Listing) -> None:
    """Propose a text model's template that is only where vLLM looks for processors' templates."""
    template = listing.json(PROCESSORS).get("chat_template")
    tokenizers = "chat_template.jinja" in listing or listing.json("tokenizer_config.json").get("chat_template")
    if isinstance(template, str) and template and not tokenizers and not listing.has_processor():
        why = f"it is only in {PROCESSORS}, which vLLM reads only for models that take more than text"
        draft.pick("engine.flags.chat_template", template, why)


def _requests(shape: Shape, machine: Machine) -> int:
    """Return how many requests to run at once, reduced if their states need too much memory."""
    fits = machine.budget // SHARE_FOR_STATES // _state_bytes(shape) if shape.state else REQUESTS[machine.kind]
    return max(1, min(REQUESTS[machine.kind], fits))


def _state_bytes(shape: Shape) -> int:
    """Return the bytes of state per request in all layers, rounded up to vLLM's blocks."""
    return math.ceil(shape.layers * shape.state * 2 * BLOCKS_MORE)


def _dtype(draft: Draft, facts: ChatFacts, machine: Machine, quantized: str) -> str:
    stored = stored_dtype(facts.listing.json("config.json")) or "of no stated dtype"
    why = f"quantized weights ({quantized}) stay as they are" if quantized else f"the files are {stored}"
    if machine.capability is not None and machine.capability < 80 and stored == "bfloat16":
        return str(draft.pick("dtype", "float16", f"{why}, and this GPU has no bfloat16"))
    return str(draft.pick("dtype", "auto", f"{why}; vLLM computes in 16 bits, or in 32 for small weights on a CPU"))


def _adapter_places(draft: Draft, facts: ChatFacts, shape: Shape, machine: Machine) -> None:
    name = facts.detected.architecture
    if not vllm_source.takes_adapters(name):
        if draft.requested_value("memory.adapters.device"):
            raise Unfit(
                f"vLLM has no LoRA for {name}: leave memory.adapters.device out.",
                code="unknown_architecture",
                param="overrides",
            )
        draft.pick("memory.adapters", {"device": 0, "host": 0}, f"vLLM has no LoRA for {name}")
        return
    requested, rank = map(draft.requested_value, ("memory.adapters.device", "memory.adapters.max_rank"))
    rank = rank if isinstance(rank, int) else RANK
    place_bytes = adapter_place_bytes(facts.weights, shape, rank, 2)
    staged = place_bytes if machine.kind == "cpu" else 0
    sizes = [(PLACES, STAGED), (2, 4), (1, 2)]
    if isinstance(requested, int):
        sizes = [(requested, max(requested, STAGED)), (requested, requested)]  # adapters in a place are also staged
    for device, host in sizes:
        if (device * place_bytes + host * staged) * SHARE_FOR_PLACES <= machine.budget or host == requested:
            why = f"{device} adapters of rank {rank} or less in one batch, {size_words(place_bytes)} each"
            draft.pick("memory.adapters", {"device": device, "host": host, "max_rank": rank}, why)
            return
    why = f"a place takes {size_words(place_bytes)}, much for this machine; set memory.adapters.device to have some"
    draft.pick("memory.adapters", {"device": 0, "host": 0}, why)


def _cache(draft: Draft, facts: ChatFacts, shape: Shape, machine: Machine, working_set: WorkingSet, dtype: str) -> None:
    longest = longest_context(facts.listing.json("config.json"))
    so_far = draft.recipe().model_copy(update={"dtype": dtype})
    probe = settle_by_size(so_far, facts.weights.bytes, machine.kind)
    check_context(draft.requested.get("context_length"), longest, probe.engine.flags)
    per_token = kv_bytes_per_token(probe, shape)
    needs = estimate_of(probe, facts.weights, shape, machine.kind)
    fixed, requested = needs.total - needs.kv_cache, probe.memory.kv_cache
    room = machine.budget - fixed - MIB if requested is None else requested  # sizes are rounded up to whole ones
    full = longest or shape.context
    short = min(unstretched(facts.listing.json("config.json")) or full, full)
    context = min(short, USUAL_CONTEXT)
    why = "all that the model was trained for" if context == longest else f"of the model's {full:,}"
    if context != longest:
        why += f", with which one request would take {size_words(per_token * full)} of KV cache"
    if context == short < full:
        why = f"its positions for short texts; with more, up to {full:,}, vLLM scales those of all texts"
    fits = int(room / BLOCKS_MORE // per_token) // 16 * 16
    if (LEAST_CONTEXT if requested is None else 16) <= fits < context:
        reason = f"fits in addition to {size_words(fixed)} of weights and buffers"
        context, why = fits, f"what {reason if requested is None else 'memory.kv_cache holds'}, of the model's {full:,}"
    requested = draft.pick("context_length", context, why)
    context = requested if isinstance(requested, int) else context
    if context > short:
        draft.notes.append(
            f"With a context of over {short:,} tokens vLLM scales the positions of all texts, also of short ones, so "
            "answers to those differ slightly from transformers'."
        )
    tokens = min(working_set.tokens, context)
    # on a GPU, vLLM requires a cache that holds a state for each request
    least = max(math.ceil(context * BLOCKS_MORE) * per_token, probe.batching.sequences * _state_bytes(shape))
    target = max(working_set.requests * tokens * per_token, least)
    size = max(least, min(target, room)) if room > least else least
    size = math.ceil(size / MIB) * MIB
    many = f"{size // per_token:,} tokens of {per_token:,} bytes"
    why = f"{working_set.requests} requests of {tokens:,} tokens each: {many}"
    if size < target:
        why = f"{many}, all that fits; {working_set.requests} requests of {tokens:,} tokens need {size_words(target)}"
    elif size > working_set.requests * tokens * per_token + MIB:
        why = f"one full context: {many}"
    draft.pick("memory.kv_cache", f"{size // MIB}MiB", why)


def _parsers(draft: Draft, facts: ChatFacts) -> None:
    tekken, name = facts.listing.is_tekken(), facts.detected.architecture
    template = "[TOOL_CALLS]" if tekken else facts.listing.chat_template()
    by_code = tekken or name in vllm_source.RENDERED
    if tekken:
        why = "tekken.json is read by Mistral's own tokenizer, which formats messages and tools"
        draft.pick("engine.flags.tokenizer_mode", "mistral", why)
    if not template and not by_code:
        return
    calls_tools = by_code or shows_tools(template, facts.listing)
    family = family_of(facts.name, name, template)
    if not calls_tools:
        draft.notes.append("Its chat template does not show tools to the model, so requests with tools are refused.")
    elif family and family.tools and has_parser("tool_call_parser", family.tools):
        formatter = "Mistral's tokenizer" if tekken else "vLLM" if by_code else "its chat template"
        draft.pick("engine.flags.enable_auto_tool_choice", True, f"{formatter} shows tools to the model")
        draft.pick("engine.flags.tool_call_parser", family.tools, f"{family.words}: {TOOL_PAGE}")
    else:
        draft.notes.append(
            "Its chat template shows tools to the model, but no parser is known for its calls: requests with tools are "
            "refused until you set engine.flags.tool_call_parser and enable_auto_tool_choice."
        )
    if family and family.reasoning and has_parser("reasoning_parser", family.reasoning):
        draft.pick("engine.flags.reasoning_parser", family.reasoning, f"{family.words}: {REASONING_PAGE}")
