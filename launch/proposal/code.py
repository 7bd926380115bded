"""Code in a model's repository, which runs only if the operator trusts it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launch.files.listing import Listing
from launch.proposal.draft import Draft, put
from models.chat.vllm import source as vllm_source
from registry.errors import BadRequest, Forbidden, Unfit
from registry.recipes.validation import VLLM_FIELDS


@dataclass(frozen=True, slots=True)
class Code:
    what: str
    """'network', 'config' or 'tokenizer'."""
    name: str
    """Name of a class or model type."""
    other_repository: str = ""
    """The repository that holds the code, if it is another one."""


def check_code(draft: Draft, listing: Listing, code: Code | None) -> None:
    """Raise Unfit for untrusted code, before the download instead of after a failed load."""
    if code is None or draft.requested.get("engine.flags.trust_remote_code"):
        return
    description = f"{code.name}, of {code.other_repository}" if code.other_repository else code.name
    raise Unfit(
        f"{listing.where} brings its {code.what} as code ({description}), which would be run. If you trust it, write a "
        "recipe for it with engine.flags.trust_remote_code: true. Or add a model of a known kind.",
        code="needs_code",
        param="source",
    )


def code_of_text(listing: Listing, kind: str) -> Code | None:
    """Return the code that an embedding model or reranker with `model_type` `kind` needs."""
    types = (kind for kind, _ in listing.steps())
    config = listing.json("config.json")
    if own := next((kind for kind in types if kind and not kind.startswith("sentence_transformers.")), ""):
        return Code("network", own, _other_repository(_auto_map(config)))
    if "auto_map" not in config:
        return None
    code = _auto_map(config)
    is_included = _in_transformers(kind, code.get("AutoConfig", "").rpartition(".")[2])
    is_known = is_included and not config.get("moe_every_n_layers")  # transformers' NomicBert has no experts
    return None if is_known else Code("network", kind, _other_repository(code))


def code_of_chat(listing: Listing) -> Code | None:
    """Return the code that a chat model's config or tokenizer needs; its network is vLLM's."""
    config = listing.json("config.json")
    code = _auto_map(config)
    kind = str(config.get("model_type") or "")
    theirs = vllm_source.config_kinds()
    if not kind or "AutoConfig" not in code or kind in _kinds() or not theirs:
        return None
    if kind not in theirs:
        return Code("config", kind, _other_repository(code))
    tokenizer_config = listing.json("tokenizer_config.json")
    name = str(tokenizer_config.get("tokenizer_class") or "")
    if "AutoTokenizer" in _auto_map(tokenizer_config) and name.removesuffix("Fast") not in _tokenizers():
        return Code("tokenizer", name or kind)
    return None


def _auto_map(config: dict[str, Any]) -> dict[str, str]:
    """Map replaced classes to code; a tokenizer may have a slow and a fast one."""
    mapping = config.get("auto_map")
    return {str(key): str(value) for key, value in mapping.items()} if isinstance(mapping, dict) else {}


def _other_repository(code: dict[str, str]) -> str:
    return next((name.partition("--")[0] for name in code.values() if "--" in name), "")


def _in_transformers(kind: str, config_class: str) -> bool:
    """Return whether transformers has included the repository's code.

    Other code reuses an existing model type, for which transformers would load another network with random weights:
    jina-embeddings-v2 has the type "bert". Such code has a config class with another name, or none.
    """
    name = kind.replace("-", "_")
    if not name.isidentifier() or not config_class:
        return False
    return f"class {config_class}(" in _transformers(f"models/{name}/configuration_{name}.py")


@cache
def _kinds() -> frozenset[str]:
    """Return the model types that transformers has a config for."""
    text = _transformers("models/auto/auto_mappings.py") + _transformers("models/auto/configuration_auto.py")
    return frozenset(re.findall(r'"([\w-]+)"(?:, |: )"\w+Config"', text))


@cache
def _tokenizers() -> frozenset[str]:
    """Return transformers' tokenizer classes, without the suffix 'Fast'."""
    text = _transformers("models/auto/tokenization_auto.py")
    return frozenset({"PreTrainedTokenizer", *re.findall(r'"(\w+(?:Tokenizer|Backend))(?:Fast)?"', text)})


def _transformers(file: str) -> str:
    """Return the text of one of transformers' files, or ''. Importing it takes seconds."""
    spec = find_spec("transformers")
    paths = (Path(folder) / file for folder in (spec.submodule_search_locations if spec else None) or [])
    return next((path.read_text(encoding="utf-8") for path in paths if path.is_file()), "")


HARMLESS = frozenset({
    "beam_size", "compute_type", "default_chat_template_kwargs", "enable_auto_tool_choice", "enable_chunked_prefill",
    "enable_prefix_caching", "enforce_eager", "kv_cache_dtype", "limit_mm_per_prompt", "matryoshka_dimensions",
    "max_logprobs", "override_generation_config", "packed", "reasoning_parser", "seed", "step_seconds",
    "tensor_parallel_size", "threads", "tool_call_parser",
})  # fmt: skip
"""Flags that are harmless with any value."""
WORDS: Mapping[str, frozenset[str]] = {
    # other names may be kernels from a hub, which are code
    "attn_implementation": frozenset({"eager", "flash_attention_2", "sdpa"}),
    "generation_config": frozenset({"auto", "vllm"}),  # others are folders
    "tokenizer_mode": frozenset({"auto", "hf", "mistral", "slow"}),  # others may come from a plug-in
}
"""Flags that are harmless with these values."""


def check_flags(requested: Mapping[str, object], trusted: bool) -> None:
    """Raise Forbidden for a flag that only a trusted client may set, BadRequest for one with its own key.

    requested: values by dotted keys. Keys that a later one overwrites are checked as well.
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
    if plain in VLLM_FIELDS:
        param = f"engine.flags.{name}"
        raise BadRequest(f"'{param}' is no flag of a recipe here: write it as {VLLM_FIELDS[plain]}.", param=param)
    raise Forbidden(
        f"engine.flags.{name} may name foreign files or code, so clients may not set it"
        f"{' to this' if plain in WORDS else ''}: write it into a recipe of --recipes, or start the server with "
        "--trust-clients.",
        code="flag_not_allowed",
        param=f"engine.flags.{name}",
    )
