"""Name the file of a model that cannot be read, which the libraries' own errors do not."""

import json
from collections.abc import Iterable
from pathlib import Path

from registry.base.wording import first_line
from registry.errors import EngineFailed

SETTINGS = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.json",
    "preprocessor_config.json", "processor_config.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json",
)  # fmt: skip
"""Small files that engines read. Of some of them, the libraries silently use defaults instead if they are broken."""
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocabulary.json", "added_tokens.json")
"""Files that take up to a second to parse, and without which no library loads a model."""


def refuse_broken_settings(folder: Path) -> None:
    """Raise EngineFailed for a small file that is no JSON."""
    _refuse_broken(folder, SETTINGS)


def refuse_broken_vocabulary(folder: Path) -> None:
    """Raise EngineFailed for a vocabulary that its library cannot read. Call it to explain a failed load."""
    from tokenizers import Tokenizer

    _refuse_broken(folder, VOCABULARIES)
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise _broken(file, error) from None


def _refuse_broken(folder: Path, names: Iterable[str]) -> None:
    for file in (folder / name for name in names):
        try:
            json.loads(file.read_bytes() if file.is_file() else b"{}")
        except (ValueError, RecursionError) as error:
            raise _broken(file, error) from None


def _broken(file: Path, error: Exception) -> EngineFailed:
    return EngineFailed(
        f"{file} cannot be read: {first_line(error).rstrip('.')}. Copy it again from where the model came from."
    )
