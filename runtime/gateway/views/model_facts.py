"""Facts from a model's files for lists of models, read once for each revision."""

from functools import lru_cache
from pathlib import Path

import msgspec

from registry.base.json import NOT_JSON
from registry.errors import Unfit
from registry.files.context import abilities_of
from registry.files.weights import read_weights
from runtime.residency.entry import ModelEntry


class _Text(msgspec.Struct):
    hidden_size: int = 0


class _Quantization(msgspec.Struct):
    quant_method: str = ""


class _Config(_Text):
    model_type: str = ""
    text_config: _Text | None = None
    quantization_config: _Quantization | None = None


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Empty where the files are not there, or do not tell."""

    bytes: int = 0
    parameters: int = 0
    quantization: str = ""
    format: str = ""
    architecture: str = ""
    width: int = 0
    """Numbers of a hidden state or an embedding."""
    abilities: tuple[str, ...] = ()


def file_facts(entry: ModelEntry) -> FileFacts:
    """May read the headers of the weights: call it from a thread."""
    facts = FileFacts() if entry.path is None else _by_files(entry.path, entry.revision)
    abilities = tuple(sorted(abilities_of(entry.recipe, entry.path)))
    return msgspec.structs.replace(facts, abilities=abilities)


@lru_cache(maxsize=1024)
def _by_files(folder: Path, _revision: str) -> FileFacts:
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=_Config)
    except (OSError, *NOT_JSON):
        config = _Config()
    width = config.hidden_size or (config.text_config or _Text()).hidden_size
    facts = FileFacts(architecture=config.model_type, width=width)
    try:
        weights = read_weights(folder)
    except Unfit:
        return facts
    main_type = max(weights.elements, key=lambda kind: weights.elements[kind], default="")
    method = (config.quantization_config or _Quantization()).quant_method
    return msgspec.structs.replace(
        facts,
        bytes=weights.bytes,
        parameters=weights.parameters,
        quantization=method.upper() or main_type,
        format="safetensors" if any(name.endswith(".safetensors") for name in weights.files) else "",
    )
