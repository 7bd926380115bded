"""What `engine.flags` of a recipe may hold, and which flags of vLLM a recipe has words for."""

from collections.abc import Mapping

from docs.tables.markdown import code, table
from models.chat.settings import NEVER, OURS
from models.flags import SENTENCE, SPEECH

_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false", list: "list"}
MEANINGS = {
    "threads": "Threads of one step, on a CPU.",
    "attn_implementation": "As in transformers: `sdpa`, `eager`, …",
    "trust_remote_code": "Run code that lies beside the weights.",
    "matryoshka_dimensions": "Sizes to which an embedding model's vectors may be cut, if it was trained for that.",
    "step_seconds": "About how long one step may last, so that small requests soon get their turn.",
    "packed": "`false`: the library's own network, with padding, also where ours fits (BERT in float32 on a CPU).",
    "compute_type": "Of products on a CPU: `float32`, [`int16`](../embeddings.md#products-in-16-bit-integers), or "
    "`auto`: `int16` where `dtype` is `auto` and that says the same.",
    "unpadded": "On a GPU, without padding, in 16 bits, if the answers stay the same. Not yet tried on a GPU.",
    "cuda_graphs": "With `unpadded`: steps of up to 4,096 tokens are captured as CUDA graphs, in up to 512 MiB. Not "
    "yet tried on a GPU.",
    "beam_size": "Beams of the search.",
    "best_of": "Candidates when the temperature is above 0.",
    "vad": "Leave out what is not speech; `false`: only if a request asks for it.",
    "vad_threshold": "How sure the detection of speech must be, 0 to 1.",
    "repetition_penalty": "As in CTranslate2.",
    "no_repeat_ngram_size": "As in CTranslate2.",
}


def own() -> str:
    """Flags of the two engines whose flags are ours. Raises KeyError for one without a meaning."""
    rows = []
    for engine, flags in (("sentence-transformers", SENTENCE), ("faster-whisper", SPEECH)):
        rows += _rows(engine, flags)
    return table(("engine", "flag", "type", "meaning"), rows)


def _rows(engine: str, flags: Mapping[str, type]) -> list[tuple[str, str, str, str]]:
    return [(code(engine), code(name), _TYPES[kind], MEANINGS[name]) for name, kind in flags.items()]


def vllm() -> str:
    """Flags of vLLM with a recipe's words for them, and those that a slot sets itself."""
    rows = [(code("--" + flag.replace("_", "-")), code(key)) for flag, key in OURS.items()]
    refused = ", ".join(code("--" + flag.replace("_", "-")) for flag in sorted(NEVER))
    return f"{table(('flag of `vllm serve`', 'in a recipe'), rows)}\n\nNot in a recipe: {refused}."
