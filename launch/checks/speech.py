"""Faults that loading a Whisper would meet: tokenizer, vocabulary, weights."""

import json
from collections.abc import Iterator
from pathlib import Path

from launch.checks.network import network_faults, tensor_names
from launch.conversion.whisper import needs_conversion
from models.speech.model import MARKS
from registry.files.weights import read_weights
from registry.recipes.definition import Recipe


def faults_of(_recipe: Recipe, folder: Path) -> Iterator[str]:
    from tokenizers import Tokenizer

    weights = read_weights(folder)
    if needs_conversion(folder):
        yield from network_faults(folder, tensor_names(folder, weights.files))
    if not (folder / "tokenizer.json").is_file():
        return  # made from the vocabulary when it is converted
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises it as it is
        yield f"tokenizer.json cannot be read ({error}): copy that of the Whisper that it was made from."
        return
    if missing := [mark for mark in MARKS if tokenizer.token_to_id(mark) is None]:
        yield f"tokenizer.json has no {missing[0]}: copy that of the Whisper that it was made from."
    file = folder / "vocabulary.json"
    words = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    if isinstance(words, list) and not needs_conversion(folder) and len(words) < tokenizer.get_vocab_size() - 1:
        yield (
            f"vocabulary.json has {len(words):,} words, and tokenizer.json {tokenizer.get_vocab_size():,}: one is "
            "another model's."
        )
