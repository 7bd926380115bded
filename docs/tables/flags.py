"""The keys of `engine.flags` in a recipe, and vLLM's flags that have their own key in a recipe."""

from collections.abc import Mapping

from docs.tables.markdown import code, table
from models.flags import NEVER, SENTENCE, SPEECH
from registry.recipes.validation import VLLM_FIELDS

_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false", list: "list"}
MEANINGS = {
    "threads": "Threads of one step, on a CPU.",
    "attn_implementation": "As in transformers: `sdpa`, `eager`, …",
    "trust_remote_code": "Run code that comes with the weights.",
    "matryoshka_dimensions": "Sizes to which an embedding model's vectors may be cut, if it was trained for that.",
    "step_seconds": "Approximate maximum length of a step, so that small requests do not wait long for their turn.",
    "packed": "`false`: use the library's own network, with padding, even where ours fits (BERT in float32 on a CPU).",
    "compute_type": "Type of matrix products on a CPU: `float32`, "
    "[`int16`](../embeddings.md#products-in-16-bit-integers), or `auto`: `int16` if `dtype` is `auto` and the answers "
    "stay the same.",
    "unpadded": "Run without padding on a GPU, in 16 bits, if the answers stay the same. Not yet tried on a GPU.",
    "cuda_graphs": "With `unpadded`: capture steps of up to 4,096 tokens as CUDA graphs, in up to 512 MiB. Not yet "
    "tried on a GPU.",
    "beam_size": "Beams of the search.",
    "best_of": "Candidates if the temperature is above 0.",
    "vad": "Leave out what is not speech. `false`: only if a request asks for it.",
    "vad_threshold": "Minimum confidence in detected speech, 0 to 1.",
    "repetition_penalty": "As in CTranslate2.",
    "no_repeat_ngram_size": "As in CTranslate2.",
}


def own() -> str:
    """Return the flags of engines that define their own. Raises KeyError for one without a meaning."""
    rows = []
    for engine, flags in (("sentence-transformers", SENTENCE), ("faster-whisper", SPEECH)):
        rows += _rows(engine, flags)
    return table(("engine", "flag", "type", "meaning"), rows)


def _rows(engine: str, flags: Mapping[str, type]) -> list[tuple[str, str, str, str]]:
    return [(code(engine), code(name), _TYPES[kind], MEANINGS[name]) for name, kind in flags.items()]


def vllm() -> str:
    """Return vLLM's flags with their keys in a recipe, and those that a recipe may not have."""
    rows = [(code("--" + flag.replace("_", "-")), code(key)) for flag, key in VLLM_FIELDS.items()]
    refused = ", ".join(code("--" + flag.replace("_", "-")) for flag in sorted(NEVER))
    return f"{table(('flag of `vllm serve`', 'in a recipe'), rows)}\n\nNot in a recipe: {refused}."
