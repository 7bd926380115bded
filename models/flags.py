"""`engine.flags` of a recipe: names and types of two engines, and the names of vLLM's."""

import difflib
import math
from collections.abc import Collection, Mapping

from registry import vllm_source
from registry.errors import EngineFailed
from registry.recipes.definition import Recipe, Task
from registry.recipes.validation import VLLM_FIELDS

SENTENCE: Mapping[str, type] = {
    "threads": int,
    "attn_implementation": str,
    "trust_remote_code": bool,
    "matryoshka_dimensions": list,
    "step_seconds": float,
    "packed": bool,
    "compute_type": str,
    "unpadded": bool,
    "cuda_graphs": bool,
}
"""Fields of `engine.flags` for texts. threads: of one step, on a CPU. matryoshka_dimensions: sizes to which the
model's vectors may be cut, for embedding models that were trained for it. step_seconds: approximately the longest step.
packed: False always uses the library's network, even if ours supports the model (`models.text.bert`). compute_type: of
products on a CPU (`models.text.cpu.linear`). unpadded: on a GPU, also run other networks without padding, if their
answers stay the same (`models.text.unpadded`). cuda_graphs: in addition, capture steps of a few sizes as graphs."""
SPEECH: Mapping[str, type] = {
    "threads": int,
    "beam_size": int,
    "best_of": int,
    "vad": bool,
    "vad_threshold": float,
    "repetition_penalty": float,
    "no_repeat_ngram_size": int,
    "step_seconds": float,
}
"""Fields of `engine.flags` for speech. vad: False also transcribes silence, unless a request says otherwise.
step_seconds: approximately the longest step, once the speed is known."""
KNOWN: Mapping[Task, Mapping[str, type]] = {
    Task.EMBED: SENTENCE,
    Task.RERANK: {name: kind for name, kind in SENTENCE.items() if name != "matryoshka_dimensions"},
    Task.TRANSCRIBE: SPEECH,
}
RANGES: Mapping[str, tuple[float, float]] = {"best_of": (1, math.inf), "vad_threshold": (0, 1)}
"""Least and largest values of fields with which requests would fail or have no text although the load succeeds."""
NEVER = {
    "host", "port", "uds", "api_key", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "middleware", "allowed_origins",
    "worker_extension_cls", "worker_cls", "distributed_executor_backend", "lora_dtype", "lora_target_modules",
    "enable_log_requests", "root_path", "headless", "api_server_count", "config", "grpc", "default_mm_loras",
    "fully_sharded_loras", "load_format_plugin", "enable_log_outputs", "scheduling_policy", "nnodes", "node_rank",
    "master_addr", "master_port", "data_parallel_rank", "data_parallel_start_rank", "data_parallel_size_local",
    "data_parallel_address", "data_parallel_rpc_port", "data_parallel_backend", "data_parallel_hybrid_lb",
    "data_parallel_external_lb", "prefill_context_parallel_size", "enable_mm_embeds", "enable_prompt_embeds",
}  # fmt: skip
"""Flags that make no sense in a slot or would bypass our control or our bounds."""
REPLACEMENTS: Mapping[str, str] = {
    "host": "roundhouse serve --host",
    "port": "roundhouse serve --port",
    "allowed_origins": "roundhouse serve --cors-origins",
    "root_path": "roundhouse serve --public-url",
    "api_key": "roundhouse keys create",
}
"""Flags among `NEVER` with an equivalent outside of recipes."""
_TENSORS = (
    "it would let clients send tensors as pickles, which may take any amount of memory; send text, images, sounds and "
    "videos"
)
UNBOUNDED: Mapping[str, str] = {"enable_mm_embeds": _TENSORS, "enable_prompt_embeds": _TENSORS}
"""Flags among `NEVER` that let a small request take any amount of memory, with the reason."""
FORMER: Mapping[str, str] = {
    "disable_log_requests": "",
    "enable_reasoning": "",
    "guided_decoding_backend": "structured_outputs_config",
    "max_seq_len_to_capture": "max_cudagraph_capture_size",
    "num_speculative_tokens": "speculative_config",
    "rope_scaling": "hf_overrides",
    "rope_theta": "hf_overrides",
    "speculative_model": "speculative_config",
}
"""Flags of earlier vLLMs, and what replaces them."""
WORDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list, such as [a, b]",
}


def check_flags(recipe: Recipe) -> None:
    """Raise EngineFailed for a flag with an unknown name or a wrong type."""
    if fault := flag_fault(recipe):
        raise EngineFailed(fault)


def flag_fault(recipe: Recipe) -> str | None:
    """Return the first fault in the recipe's flags, or None if none is known before a load."""
    known = KNOWN.get(recipe.task)
    if known is None:
        faults = [f"{key}: {fault}" for key in recipe.engine.flags if (fault := name_fault(key))]
        return f"its engine.flags do not fit vLLM: {'; '.join(faults)}" if faults else None
    for name, value in recipe.engine.flags.items():
        if name not in known:
            close = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"write '{close[0]}'" if close else f"known are {', '.join(sorted(known))}"
            return f"engine flag '{name}' is not known; {hint}"
        kinds = (int, float) if known[name] is float else (known[name],)
        if not isinstance(value, kinds) or (isinstance(value, bool) and known[name] is not bool):
            return f"engine flag '{name}' cannot be {value!r}; write {WORDS[known[name]]}"
        least, most = RANGES.get(name, (0, 0))
        if name in RANGES and isinstance(value, int | float) and not least <= value <= most:
            bounds = f"from {least} to {most}" if most < math.inf else f"of at least {least}"
            return f"engine flag '{name}' cannot be {value!r}; write {WORDS[known[name]]} {bounds}"
    if recipe.engine.flags.get("cuda_graphs") and not recipe.engine.flags.get("unpadded"):
        return "engine flag 'cuda_graphs' needs a network without padding: also write 'unpadded: true'"
    return None


def name_fault(key: str, known: Collection[str] = ()) -> str | None:
    """Return why a recipe cannot have a flag of vLLM, and what to write instead.

    known: vLLM's flags and their negations, with underscores; default: those in its source.
    """
    name, known = key.replace("-", "_"), known or vllm_source.serve_flags()
    if (field := VLLM_FIELDS.get(name.removeprefix("no_"))) is not None:
        return f"write it as {field} of the recipe"
    if name in UNBOUNDED:
        return UNBOUNDED[name]
    if name in NEVER:
        return f"use {REPLACEMENTS[name]}" if name in REPLACEMENTS else "the slot sets it"
    if not known or name in known:
        return None
    usable = [flag for flag in known if flag not in VLLM_FIELDS and flag not in NEVER]
    close = FORMER.get(name, next(iter(difflib.get_close_matches(name, usable, n=1)), ""))
    return f"this vLLM has no such flag; {f'write {close}' if close else 'leave it out'}"
