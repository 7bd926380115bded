"""Find faults that would break a chat model's requests: weight names, tokenizer, template."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.checks.network import network_faults, tensor_names
from launch.files.listing import Listing, list_folder
from models import tokenizer_files
from models.chat.vllm import source as vllm_source
from registry.base.json import read_object
from registry.base.wording import first_line
from registry.files.shape import text_config
from registry.files.weights import read_weights
from registry.recipes.definition import Recipe

GREETING = [{"role": "user", "content": "Hello"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]


def faults_of(recipe: Recipe, folder: Path) -> Iterator[str]:
    config = read_object(folder / "config.json")
    names = tensor_names(folder, read_weights(folder).files)
    yield from network_faults(folder, names)
    listing = list_folder(folder)
    mode = recipe.engine.flags.get("tokenizer_mode")
    architectures = config.get("architectures") or [""]
    if listing.is_tekken() or mode not in (None, "auto", "hf") or architectures[0] in vllm_source.RENDERED:
        return
    if recipe.engine.flags.get("tokenizer") or "auto_map" in read_object(folder / "tokenizer_config.json"):
        return
    yield from _tokenizer_faults(recipe, folder, listing)


def _tokenizer_faults(recipe: Recipe, folder: Path, listing: Listing) -> Iterator[str]:
    from transformers import AutoTokenizer

    tokenizer_files.patch()
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        ids = tokenizer("Hello")["input_ids"]
    except Exception as error:
        yield (
            f"Its tokenizer cannot be loaded ({type(error).__name__}: {first_line(error)}): copy the tokenizer's files "
            "(tokenizer.json, or the vocabulary of an older kind, and tokenizer_config.json) from the model that it "
            "was made from."
        )
        return
    if not ids:
        yield "Its tokenizer turns a word into no tokens: copy tokenizer.json from the model that it was made from."
        return
    template = recipe.engine.flags.get("chat_template")
    if not isinstance(template, str) or "{" not in template:
        template = tokenizer.chat_template
    if not template and listing.has_processor():
        template = listing.json("chat_template.json").get("chat_template")
    if isinstance(template, dict):
        template = template.get("default")
    if not template:
        if listing.chat_template() and "chat_template" not in recipe.engine.flags:
            yield ("It has chat templates, but no default one: set engine.flags.chat_template, or name one 'default'.")
        return
    rows = text_config(read_object(folder / "config.json")).get("vocab_size")
    yield from _template_faults(tokenizer, template, rows if isinstance(rows, int) else None)


def _template_faults(tokenizer: Any, template: str, rows: int | None) -> Iterator[str]:
    """Yield faults of a template. rows: the network's vocabulary size; None if unknown."""
    fault = ""
    for messages in (GREETING, PARTS):
        try:
            rendered = tokenizer.apply_chat_template(
                messages, chat_template=template, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:
            fault = fault or f"({type(error).__name__}: {first_line(error)})"
        else:
            if "Hello" in str(rendered):
                yield from _unknown_tokens(tokenizer, str(rendered), rows)
                return
            fault = fault or "(it omits the message)"
    yield (
        f"Its chat template cannot format a user's message {fault}: use the one of the model that it was made from, "
        "or set engine.flags.chat_template."
    )


def _unknown_tokens(tokenizer: Any, prompt: str, rows: int | None) -> Iterator[str]:
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    if rows is not None and (largest := max(ids, default=0)) >= rows:
        yield (
            f"Its chat template writes {tokenizer.convert_ids_to_tokens(largest)!r}, which is token {largest:,} of its "
            f"tokenizer, but the network has only {rows:,} tokens: use the tokenizer and the template of the model "
            "that it was made from, or save it after resize_token_embeddings and training."
        )
