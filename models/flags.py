"""`engine.flags` of a recipe, for the two engines with known names and types."""

import difflib
from collections.abc import Mapping

from registry.errors import EngineFailed
from registry.recipes.definition import Recipe, Task
from registry.recipes.fields import Flag

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
WORDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list, such as [a, b]",
}


def flags_of(recipe: Recipe) -> dict[str, Flag]:
    """Return the recipe's flags. Raises EngineFailed for an unknown name or a wrong type."""
    if fault := flag_fault(recipe):
        raise EngineFailed(fault)
    return dict(recipe.engine.flags)


def flag_fault(recipe: Recipe) -> str | None:
    """Return the first fault in the recipe's flags, or None if none is known before a load."""
    known = KNOWN.get(recipe.task)
    if known is None:
        return None
    for name, value in recipe.engine.flags.items():
        if name not in known:
            close = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"write '{close[0]}'" if close else f"known are {', '.join(sorted(known))}"
            return f"engine flag '{name}' is not known; {hint}"
        kinds = (int, float) if known[name] is float else (known[name],)
        if not isinstance(value, kinds) or (isinstance(value, bool) and known[name] is not bool):
            return f"engine flag '{name}' cannot be {value!r}; write {WORDS[known[name]]}"
    if recipe.engine.flags.get("cuda_graphs") and not recipe.engine.flags.get("unpadded"):
        return "engine flag 'cuda_graphs' needs a network without padding: also write 'unpadded: true'"
    return None
