"""Which engine flags a client may set. Others can name files or code: they are the operator's to write."""

from collections.abc import Mapping
from typing import Any

from launch.proposal.draft import put
from registry.errors import Forbidden

HARMLESS = frozenset({
    "beam_size", "compute_type", "default_chat_template_kwargs", "enable_auto_tool_choice", "enable_chunked_prefill",
    "enable_prefix_caching", "enforce_eager", "kv_cache_dtype", "limit_mm_per_prompt", "matryoshka_dimensions",
    "max_logprobs", "override_generation_config", "packed", "reasoning_parser", "seed", "step_seconds",
    "tensor_parallel_size", "threads", "tool_call_parser",
})  # fmt: skip
"""Whatever they are set to."""
WORDS: Mapping[str, frozenset[str]] = {
    "attn_implementation": frozenset({"eager", "flash_attention_2", "sdpa"}),  # a hub's kernel is code, by its name
    "generation_config": frozenset({"auto", "vllm"}),  # else it is a folder
    "tokenizer_mode": frozenset({"auto", "hf", "mistral", "slow"}),  # a plug-in may bring others
}
"""Harmless where they are set to one of these."""


def check_flags(requested: Mapping[str, object], trusted: bool) -> None:
    """Raise Forbidden for a flag that only a trusted client may set.

    `requested` maps keys with dots to values. Keys that a later one overwrites count as well.
    """
    for key, value in () if trusted else requested.items():
        data: dict[str, Any] = {}
        put(data, key, value)
        engine = data.get("engine")
        flags = engine.get("flags") if isinstance(engine, dict) else None
        for name, flag_value in sorted(flags.items()) if isinstance(flags, dict) else ():
            _check(str(name), flag_value)


def _check(name: str, value: object) -> None:
    plain = name.replace("-", "_")
    if plain in HARMLESS or (isinstance(value, str) and value in WORDS.get(plain, ())) or value is None:
        return
    raise Forbidden(
        f"engine.flags.{name} may name files or code of others, so clients may not set it"
        f"{' to this' if plain in WORDS else ''}: write it into a recipe of --recipes, or start the server with "
        "--trust-clients.",
        code="flag_not_allowed",
        param=f"engine.flags.{name}",
    )
