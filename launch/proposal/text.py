"""The recipes of embedding models and rerankers: dtype, batches, and what their files tell of pooling and prompts."""

import re
from importlib.util import find_spec
from pathlib import Path

from launch.files.detect import Detected
from launch.files.listing import Listing
from launch.proposal.draft import Draft, Machine
from registry.errors import Unfit
from registry.recipes.definition import Task

HALF = frozenset({"bert", "roberta", "xlm-roberta", "mpnet", "camembert", "distilbert", "electra"})
"""Kinds of models that are known to compute well in float16; newer ones were trained in bfloat16."""
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
"""By the names that sentence-transformers 6 writes; what earlier ones wrote, and what it is for people."""
ASKS = re.compile(r"""['"`](search_query|query|Represent this sentence for searching relevant passages|Instruct): """)
"""What cards tell to put before a query, as they quote it."""


def propose_text(draft: Draft, detected: Detected, listing: Listing, machine: Machine) -> None:
    """Raises Unfit for a model whose network is code of its own repository."""
    config = listing.json("config.json")
    kind = str(config.get("model_type") or "")
    _check_code(draft, listing, kind)
    if machine.kind == "cpu":
        draft.pick("dtype", "auto", "a CPU computes in 32 bits, products in 16 bit integers where it can")
    elif kind in HALF:
        draft.pick("dtype", "float16", "half the memory; networks of this kind compute well in it")
    else:
        draft.pick("dtype", "bfloat16", "half the memory, and the range that newer networks were trained with")
    draft.pick("batching.max_requests", REQUESTS[machine.kind], "inputs of one step")
    draft.pick("batching.max_tokens", STEP_TOKENS[machine.kind], "tokens of one step")
    if detected.task is Task.EMBED:
        _pooling(draft, listing)
    elif "chat_template.jinja" in listing or listing.json("tokenizer_config.json").get("chat_template"):
        draft.notes.append(
            "It was made from a chat model: if its card puts words around queries and documents, clients write them."
        )


def _pooling(draft: Draft, listing: Listing) -> None:
    pooling = listing.json("1_Pooling/config.json")
    modes = pooling.get("pooling_mode") or ()
    told = [
        words
        for mode, (key, words) in POOLINGS.items()
        if pooling.get(key) or mode in ([modes] if isinstance(modes, str) else modes)
    ]
    if told:
        draft.notes.append(f"Pooling, as its files say: {', '.join(told)}.")
    card = listing.text("README.md")
    own = listing.json("config_sentence_transformers.json")
    prompts = own.get("prompts")
    if isinstance(prompts, dict) and any(prompts.values()):
        default = own.get("default_prompt_name")
        used = f"'{default}' is put before every input" if default else "clients choose one, or write it themselves"
        draft.notes.append(f"Prompts, as its files say: {', '.join(sorted(prompts))}; {used}.")
    elif asks := ASKS.search(card):
        draft.notes.append(
            f"Its files hold no prompts, but its card puts '{asks[1]}: ' before queries: clients write that "
            "themselves, and what the card puts before other texts."
        )
    if "matryoshka" in card.lower() and not draft.wants("engine.flags.matryoshka_dimensions"):
        draft.notes.append(
            "Its card speaks of vectors that may be cut (Matryoshka): the sizes that clients may ask for are set with "
            'engine.flags.matryoshka_dimensions: ["256", "512"].'
        )


def _check_code(draft: Draft, listing: Listing, kind: str) -> None:
    code, elsewhere = _code(listing, kind)
    if code and not draft.asked.get("engine.flags.trust_remote_code"):
        name = listing.where.rpartition("/")[2]
        fetch = [] if listing.where.startswith("/") else [f"hf download {listing.where} --local-dir ./{name}"]
        fetch += [f"hf download {elsewhere}"] if elsewhere else []
        here = f"{', '.join(fetch)}, then " if fetch else ""
        told = f"{code}, of {elsewhere}" if elsewhere else code
        raise Unfit(
            f"{listing.where} brings its network as code ({told}), which would be run. If you trust it: {here}name "
            "its folder in a recipe with engine.flags.trust_remote_code. Or add a model of a known kind.",
            code="needs_code",
            param="source",
        )


def _code(listing: Listing, kind: str) -> tuple[str, str]:
    """What of a model is code that is not in the libraries, '' for nothing; and the repository it is in, if another."""
    config = listing.json("config.json")
    code = config["auto_map"] if isinstance(config.get("auto_map"), dict) else {}
    elsewhere = next((str(one).partition("--")[0] for one in code.values() if "--" in str(one)), "")
    types = [str(module.get("type") or "") for module in listing.array("modules.json") if isinstance(module, dict)]
    if own := next((one for one in types if one and not one.startswith("sentence_transformers.")), ""):
        return own, elsewhere
    if "auto_map" not in config:
        return "", ""
    taken_in = _in_transformers(kind, str(code.get("AutoConfig") or "").rpartition(".")[2])
    known = taken_in and not config.get("moe_every_n_layers")  # transformers' NomicBert has no experts
    return ("", "") if known else (kind, elsewhere)


def _in_transformers(kind: str, config_class: str) -> bool:
    """Whether transformers' network is the one that the code was taken into.

    Others give their code a kind that transformers has had for long, and what it would load by that is another network
    with weights of chance: jina-embeddings-v2 says "bert". They have no config of transformers' name, or none at all.
    """
    found = find_spec("transformers")
    folders = (found.submodule_search_locations if found else None) or []
    name = kind.replace("-", "_")
    if not name.isidentifier() or not config_class:
        return False
    files = (Path(folder) / "models" / name / f"configuration_{name}.py" for folder in folders)
    return any(f"class {config_class}(" in file.read_text(encoding="utf-8") for file in files if file.is_file())
