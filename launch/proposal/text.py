"""Propose recipes of embedding models, rerankers and speech models."""

import re

from launch.files.detect import Detection
from launch.files.listing import Listing
from launch.proposal.code import check_code, code_of_text
from launch.proposal.draft import Draft, Machine
from registry.errors import Unfit
from registry.files.weights import Weights
from registry.recipes.definition import Task

HALF = frozenset({"bert", "roberta", "xlm-roberta", "mpnet", "camembert", "distilbert", "electra"})
"""Model types known to compute well in float16; newer ones were trained in bfloat16."""
WHOLE = frozenset({"deberta", "fnet"})
"""Model types that transformers computes only in 32 bits; deberta-v2, also the type of v3, is not one."""
REQUESTS = {"cpu": 64, "cuda": 256}
STEP_TOKENS = {"cpu": 8192, "cuda": 32_768}
POOLINGS = {
    "cls": ("pooling_mode_cls_token", "the first token"),
    "mean": ("pooling_mode_mean_tokens", "the mean over the tokens"),
    "max": ("pooling_mode_max_tokens", "the largest values"),
    "mean_sqrt_len_tokens": ("pooling_mode_mean_sqrt_len_tokens", "the sum over the root of their number"),
    "lasttoken": ("pooling_mode_lasttoken", "the last token"),
    "weightedmean": ("pooling_mode_weightedmean_tokens", "a weighted mean"),
}
"""Poolings by their names in sentence-transformers 6: their names in earlier versions, and descriptions."""
TOKENIZER = re.compile(r"tokenizer\.(json|model)\Z|.*(vocab|spiece|spm|sentencepiece|bpe|tiktoken|tekken)")
"""Files with the vocabulary of any kind of tokenizer."""
ASKS = re.compile(r"""['"`](search_query|query|Represent this sentence for searching relevant passages|Instruct): """)
"""Instructions before a query, as model cards quote them."""


def propose_text(draft: Draft, detected: Detection, listing: Listing, machine: Machine) -> None:
    """Propose values. Raises Unfit if the network is custom code or the tokenizer is missing."""
    config = listing.json("config.json")
    kind = str(config.get("model_type") or "")
    check_code(draft, listing, code_of_text(listing, kind))
    if not any(TOKENIZER.match(name) for name in listing.sizes):
        raise Unfit(
            f"{listing.where} has no tokenizer (tokenizer.json, or the vocabulary of an older kind), as trainers may "
            "leave it: copy the tokenizer's files from the model that it was made from.",
            code="bad_config",
            param="source",
        )
    if machine.kind == "cpu":
        draft.pick("dtype", "auto", "a CPU computes in 32 bits, and products in 16-bit integers if it can")
    elif kind in WHOLE:
        draft.pick("dtype", "float32", "networks of this kind fail in 16 bits")
    elif machine.capability is not None and machine.capability < 80 and kind not in HALF:
        draft.pick("dtype", "float32", "this GPU has no bfloat16, and networks of this kind overflow in float16")
    elif kind in HALF:
        draft.pick("dtype", "float16", "half the memory; networks of this kind compute well in it")
    else:
        draft.pick("dtype", "bfloat16", "half the memory, with the range that newer networks were trained with")
    draft.pick("batching.max_requests", REQUESTS[machine.kind], "inputs in one step")
    draft.pick("batching.max_tokens", STEP_TOKENS[machine.kind], "tokens in one step")
    if detected.task is Task.EMBED:
        _pooling(draft, listing)
    elif "chat_template.jinja" in listing or listing.json("tokenizer_config.json").get("chat_template"):
        draft.notes.append(
            "It was made from a chat model: if its card puts text around queries and documents, clients must add it."
        )


def _pooling(draft: Draft, listing: Listing) -> None:
    folder, is_read = _pooling_folder(listing)
    pooling = listing.json(f"{folder}/config.json")
    modes = pooling.get("pooling_mode") or ()
    declared = [
        words
        for mode, (key, words) in POOLINGS.items()
        if pooling.get(key) or mode in ([modes] if isinstance(modes, str) else modes)
    ]
    if not is_read:
        differs = declared and declared != [POOLINGS["mean"][1]]
        says = f", though {folder}/config.json says {', '.join(declared)}" if differs else ""
        draft.notes.append(
            f"It has no modules.json, so vectors are the mean over the tokens, the library's default{says}."
        )
    elif declared:
        draft.notes.append(f"Pooling, according to its files: {', '.join(declared)}.")
    card = listing.text("README.md")
    own = listing.json("config_sentence_transformers.json")
    by_length = own.get("similarity_fn_name") in ("dot", "euclidean", "manhattan")
    if by_length and not any(kind.rpartition(".")[2] == "Normalize" for kind, _ in listing.steps()):
        draft.notes.append(
            f"The length of its vectors matters (similarity_fn_name: {own['similarity_fn_name']}), but they are scaled "
            "to length 1, which changes rankings. To get their own lengths, send normalize: false to /embed."
        )
    prompts = own.get("prompts")
    if isinstance(prompts, dict) and any(prompts.values()):
        default = own.get("default_prompt_name")
        used = f"'{default}' is put before every input" if default else "clients choose one, or write it themselves"
        draft.notes.append(f"Prompts, according to its files: {', '.join(sorted(prompts))}; {used}.")
    elif asks := ASKS.search(card):
        draft.notes.append(
            f"Its files have no prompts, but its card puts '{asks[1]}: ' before queries: clients must add that "
            "themselves, and also what the card puts before other texts."
        )
    _matryoshka(draft, listing)


def _pooling_folder(listing: Listing) -> tuple[str, bool]:
    """Return the pooling step's folder, and whether modules.json makes the library read it."""
    for kind, folder in listing.steps():
        if kind.rpartition(".")[2] == "Pooling":
            return folder or "1_Pooling", True
    return "1_Pooling", "modules.json" in listing


def _matryoshka(draft: Draft, listing: Listing) -> None:
    """Propose sizes to which vectors may be cut, from the fields that vLLM and makers use."""
    config = listing.json("config.json")
    sizes = config.get("matryoshka_dimensions")
    most = _whole(config.get("hidden_size"))
    if isinstance(sizes, list) and sizes and all(0 < _whole(size) <= (most or _whole(size)) for size in sizes):
        draft.pick("engine.flags.matryoshka_dimensions", sorted(sizes), "matryoshka_dimensions in its config.json")
    elif config.get("is_matryoshka") is True and "engine.flags.matryoshka_dimensions" not in draft.requested:
        draft.notes.append(
            "Its vectors may be cut (is_matryoshka in config.json, which names no sizes): set the allowed sizes with "
            "engine.flags.matryoshka_dimensions: [256, 512]."
        )


LARGE = 150_000_000
"""Parameters above which a CPU computes with int8."""
MULTILINGUAL = 51_865
"""Smallest vocabulary of a multilingual model, in tokens."""
WINDOW = 30


def propose_speech(draft: Draft, listing: Listing, weights: Weights, machine: Machine) -> None:
    windows = 2 if machine.kind == "cpu" else 16
    if machine.kind == "cuda":
        draft.pick("dtype", "float16", "half the memory, at the same word error rate")
    elif weights.parameters > LARGE:
        draft.pick("dtype", "int8", "a quarter of the memory and faster on a CPU; CTranslate2 quantizes as it loads")
    else:
        draft.pick("dtype", "auto", "it is small: a CPU computes in 32 bits")
    draft.pick("batching.max_requests", windows, "windows that are transcribed together")
    draft.pick("batching.max_tokens", windows * WINDOW, f"seconds of sound in one step, {windows} windows")
    draft.notes.append(f"Languages: {_languages(listing)}.")


def _languages(listing: Listing) -> str:
    config = listing.json("config.json")
    languages = config.get("lang_ids")
    words = len(listing.array("vocabulary.json")) or listing.text("vocabulary.txt").count("\n")
    size = config.get("vocab_size") or words
    if listing.json("generation_config.json").get("is_multilingual") is False or 0 < _whole(size) < MULTILINGUAL:
        return "English only"  # CTranslate2 writes lang_ids into every config
    if isinstance(languages, list):
        return f"{len(languages)}" if len(languages) > 1 else "English only"
    return "about 100" if _whole(size) >= MULTILINGUAL else "not given in its files"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
