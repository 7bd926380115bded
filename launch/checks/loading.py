"""Find faults that would break loading an embedding model, reranker or Whisper."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.checks.network import network_faults, tensor_names
from launch.conversion.whisper import needs_conversion
from launch.files.listing import list_folder
from models.flags import check_flags
from models.speech.model import MARKS
from models.text import loading
from models.text.tokens import Tokens, check_template
from registry.base.wording import first_line
from registry.errors import RoundhouseError
from registry.files.weights import read_weights
from registry.recipes.definition import Recipe, Task

PLAIN = frozenset({"Normalize", "Dropout"})
"""Modules that may have no folder."""


def encoder_faults(recipe: Recipe, folder: Path) -> Iterator[str]:
    yield from _absent_modules(folder)
    if (folder / "adapter_config.json").is_file():
        yield (
            "The folder also has an adapter (adapter_config.json), and the library would load that adapter's base "
            "instead: merge it (peft's merge_and_unload), or move adapter_config.json and adapter_model.safetensors "
            "out of the folder."
        )
        return
    library = loading.import_library()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)  # it warns about the meta device
    make = library.SentenceTransformer if recipe.task is Task.EMBED else library.CrossEncoder
    try:
        check_flags(recipe)
        model = loading.open_model(recipe, folder, "meta", make)
        vocabulary = loading.vocabulary_of(model)
        check_template(model.tokenizer, vocabulary)
        Tokens(model.tokenizer, vocabulary, loading.context_of(recipe, model)).inputs(["Hello"], "", True)
    except RoundhouseError as error:
        yield f"It cannot be loaded: {error.message.rstrip('.')}."
        return
    except Exception as error:
        yield (
            f"It cannot be loaded ({type(error).__name__}: {first_line(error)}): copy the files again from where the "
            "model came from."
        )
        return
    yield from _wrong_widths(model)


def _absent_modules(folder: Path) -> Iterator[str]:
    for step, name in list_folder(folder).steps():
        kind = step.rpartition(".")[2]
        if name and kind not in PLAIN and not (folder / name).is_dir():
            yield (
                f"modules.json names the step {name} ({kind}), whose folder is missing: copy it from where the model "
                "came from."
            )


def _wrong_widths(model: Any) -> Iterator[str]:
    """Yield a fault for a Dense whose input width differs from the output before it."""
    width = None
    for name, module in model.named_children():
        takes = getattr(module, "in_features", None)
        if width is not None and takes is not None and takes != width:
            yield f"Step {name} takes vectors of {takes} values, but gets {width}: one is another model's."
        gives = getattr(module, "get_embedding_dimension", None) or getattr(
            module, "get_sentence_embedding_dimension", None
        )
        width = (gives() if callable(gives) else None) or getattr(module, "out_features", None) or width


def whisper_faults(_recipe: Recipe, folder: Path) -> Iterator[str]:
    from tokenizers import Tokenizer

    weights = read_weights(folder)
    if needs_conversion(folder):
        yield from network_faults(folder, tensor_names(folder, weights.files))
    if not (folder / "tokenizer.json").is_file():
        return  # the conversion makes it from the vocabulary
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exception
        yield f"tokenizer.json cannot be read ({error}): copy that of the Whisper that it was made from."
        return
    if missing := [mark for mark in MARKS if tokenizer.token_to_id(mark) is None]:
        yield f"tokenizer.json has no {missing[0]}: copy that of the Whisper that it was made from."
    file = folder / "vocabulary.json"
    words = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    if isinstance(words, list) and not needs_conversion(folder) and len(words) < tokenizer.get_vocab_size() - 1:
        yield (
            f"vocabulary.json has {len(words):,} words, but tokenizer.json {tokenizer.get_vocab_size():,}: one is "
            "another model's."
        )
