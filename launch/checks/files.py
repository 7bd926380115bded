"""Files that are broken for any model: no JSON, or empty."""

import json
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

JSONS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocabulary.json", "preprocessor_config.json", "processor_config.json",
    "chat_template.json", "modules.json", "*sentence*.json", "sentence_*.json", "*.index.json", "*/config.json",
)  # fmt: skip
"""Files that an engine or its library parses."""
TEXTS = ("chat_template.jinja", "merges.txt", "vocab.txt")


def broken_files(folder: Path) -> Iterator[str]:
    """A sentence for each file of a model that cannot be read as what its name says."""
    for file in sorted((*folder.glob("*"), *folder.glob("*/config.json"))):
        name = str(file.relative_to(folder))
        if any(fnmatch(name, pattern) for pattern in JSONS):
            try:
                json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                yield f"{name} is no JSON ({error}): copy it again from where the model came from."
        elif name in TEXTS and not file.stat().st_size:
            yield f"{name} is empty: copy it again from where the model came from, or remove it."
