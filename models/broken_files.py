"""Name the file of a model that cannot be read, which the libraries' own errors do not."""

import json
from collections.abc import Iterator
from pathlib import Path

from registry.base.wording import first_line
from registry.errors import EngineFailed

JSON_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocabulary.json", "chat_template.json", "preprocessor_config.json",
    "processor_config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
)  # fmt: skip
"""Files that engines read. Of some of them, the libraries silently use defaults instead if they cannot be parsed."""


def refuse_broken_files(folder: Path) -> None:
    """Raise EngineFailed for a file that is no JSON."""
    for file in _present(folder):
        try:
            json.loads(file.read_bytes())
        except (ValueError, RecursionError) as error:
            raise _broken(file, error) from None


def refuse_broken_tokenizer(folder: Path) -> None:
    """Raise EngineFailed for a tokenizer.json that its library cannot read. Call it to explain a failed load."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise _broken(file, error) from None


def _present(folder: Path) -> Iterator[Path]:
    return (folder / name for name in JSON_FILES if (folder / name).is_file())


def _broken(file: Path, error: Exception) -> EngineFailed:
    return EngineFailed(
        f"{file} cannot be read: {first_line(error).rstrip('.')}. Copy it again from where the model came from."
    )
