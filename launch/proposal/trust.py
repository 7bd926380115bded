"""Which engine flags a client may set. Others can name files or code: they are the operator's to write."""

from collections.abc import Mapping
from typing import Any

from launch.proposal.draft import put
from registry.errors import Forbidden

HARMLESS = frozenset({
    "attn_implementation", "beam_size", "compute_type", "default_chat_template_kwargs", 
    "enable_auto_tool_choice", "enable_chunked_prefill", "enable_prefix_caching", "enforce_eager", "generation_config",
    "kv_cache_dtype", "limit_mm_per_prompt", "matryoshka_dimensions", "max_logprobs", "override_generation_config",
    "packed", "reasoning_parser", "seed", "step_seconds", "structured_outputs_config", "tensor_parallel_size",
    "threads", "tool_call_parser",
})  # fmt: skip


def check_flags(asked: Mapping[str, object], trusted: bool) -> None:
    """Raises Forbidden for a flag that only a trusted client may set. `asked`: keys with dots to values."""
    if trusted:
        return
    data: dict[str, Any] = {}
    for key, value in asked.items():
        put(data, key, value)
    engine = data.get("engine")
    flags = engine.get("flags") if isinstance(engine, dict) else None
    names = sorted({str(name) for name in flags} if isinstance(flags, dict) else ())
    wrong = [name for name in names if name.replace("-", "_") not in HARMLESS]
    if wrong:
        raise Forbidden(
            f"engine.flags.{wrong[0]} may name files or code of others, so clients may not set it: write it into a "
            "recipe of --recipes, or start the server with --trust-clients.",
            code="flag_not_allowed",
            param=f"engine.flags.{wrong[0]}",
        )
