"""The recipe of a Whisper: dtype, batches, and what it can hear."""

from launch.files.listing import Listing
from launch.proposal.draft import Draft, Machine
from registry.files.weights import Weights

LARGE = 150_000_000
"""Parameters from which on a CPU computes with int8."""
MULTILINGUAL = 51_865
"""Tokens of the vocabulary from which on it knows more than English."""
WINDOW = 30


def propose_speech(draft: Draft, listing: Listing, weights: Weights, machine: Machine) -> None:
    windows = 2 if machine.kind == "cpu" else 16
    if machine.kind == "cuda":
        draft.pick("dtype", "float16", "half the memory, at the same word error rate")
    elif weights.parameters > LARGE:
        draft.pick("dtype", "int8", "a quarter of the memory and faster on a CPU; CTranslate2 quantizes as it loads")
    else:
        draft.pick("dtype", "auto", "it is small: a CPU computes in 32 bits")
    draft.pick("batching.max_requests", windows, "windows that are heard together")
    draft.pick("batching.max_tokens", windows * WINDOW, f"seconds of sound in one step, {windows} windows")
    draft.notes.append(f"Languages: {_languages(listing)}.")


def _languages(listing: Listing) -> str:
    config = listing.json("config.json")
    languages = config.get("lang_ids")
    size = config.get("vocab_size")
    if isinstance(languages, list):
        return f"{len(languages)}" if len(languages) > 1 else "English alone"
    if isinstance(size, int):
        return "about 100" if size >= MULTILINGUAL else "English alone"
    return "its files do not tell"
