"""The conversion process: `python -m launch.conversion.process PARENT FROM TO`."""

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

import msgspec

from launch.conversion.gguf import convert, gguf_of
from models.process_control import die_with_parent
from models.sources.fetching import Answer, FetchDone, FetchFailed, FetchProgress
from models.sources.resolve import Fetched
from models.text.missing_config import collect_missing_weights
from registry.base.importing import TRAINING, fast_imports
from registry.base.json import read_object
from registry.errors import RoundhouseError
from registry.storage.files import is_full, sync_all

COMPANION_FILES = ("tokenizer.json", "preprocessor_config.json")
"""Files that the engine reads besides the weights; a missing tokenizer.json is generated."""


def main() -> None:
    """Convert, answer and end. Ends early if the parent process ends."""
    die_with_parent(int(sys.argv[1]))
    answers = os.dup(1)
    os.dup2(2, 1)  # only answers may go to the pipe
    os.nice(10)  # requests come first

    def answer(message: Answer) -> None:
        os.write(answers, msgspec.json.encode(message) + b"\n")

    folder, out = map(Path, sys.argv[2:4])
    answer(_convert(folder, out, lambda done, total: answer(FetchProgress(done, total))))


def _convert(folder: Path, out: Path, report: Fetched) -> Answer:
    try:
        if (file := gguf_of(folder)) is not None:
            _convert_gguf(file, out, report)
        elif failed := _convert_whisper(folder, out):
            return failed
        sync_all(out)
    except RoundhouseError as error:
        return FetchFailed(error.status, error.code, error.message)
    except Exception as error:
        if is_full(error, out):
            why = getattr(error, "strerror", None) or error
            return FetchFailed(503, "disk_full", f"The disk has no room for the converted {folder}: {why}.")
        traceback.print_exc()
        message = f"{folder} cannot be converted: {type(error).__name__}: {error}"[:1000]
        return FetchFailed(422, "conversion_failed", message)
    return FetchDone(str(out))


def _convert_gguf(file: Path, out: Path, report: Fetched) -> None:
    out.mkdir()
    with fast_imports(*TRAINING):
        for name in ("modeling_utils", "models.auto.modeling_auto"):
            import_module(f"transformers.{name}")
    convert(file, out, report)


def _convert_whisper(folder: Path, out: Path) -> FetchFailed | None:
    """Convert a Whisper, or return why its weights cannot be used."""
    if not any(folder.glob("*.safetensors")):
        return FetchFailed(422, "bad_weights", f"{folder} has no weights as safetensors, and pickles are never read.")
    if "quantization_config" in read_object(folder / "config.json"):
        return FetchFailed(
            422, "quantized", f"{folder} is quantized, and its scales would be left out: add the original."
        )
    with fast_imports(*TRAINING):
        from ctranslate2.converters import TransformersConverter
        from transformers import WhisperForConditionalGeneration, WhisperTokenizerFast  # noqa: F401

    companions = [name for name in COMPANION_FILES if (folder / name).is_file()]
    with collect_missing_weights() as missing:
        # published conversions are float16; the engine casts to its compute dtype
        converter = TransformersConverter(str(folder), copy_files=companions, low_cpu_mem_usage=True)
        converter.convert(str(out), quantization="float16")
    if missing:
        return FetchFailed(
            422,
            "bad_weights",
            f"{folder} lacks {len(missing)} of a Whisper's weights, such as {min(missing)}, which would be random: "
            "they were saved under other names, or it is a part of a Whisper that writes no text.",
        )
    if "tokenizer.json" not in companions:
        WhisperTokenizerFast.from_pretrained(str(folder), local_files_only=True).save_pretrained(str(out))
    _complete(folder, out)
    return None


def _complete(folder: Path, out: Path) -> None:
    """Correct what the converter guesses, omits, or copies wrongly."""
    generation_file = folder / "generation_config.json"
    generation = json.loads(generation_file.read_text(encoding="utf-8")) if generation_file.is_file() else {}
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config["alignment_heads"] = alignment_heads(
        generation.get("alignment_heads"), json.loads((folder / "config.json").read_text(encoding="utf-8"))
    )
    if not generation.get("lang_to_id"):  # older configs lack the languages, without which none is detected
        config["lang_ids"] = languages(out / "tokenizer.json")
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")


def alignment_heads(configured: list[list[int]] | None, network: dict[str, int]) -> list[list[int]]:
    """Return the attention heads for word timestamps, as (layer, head).

    Distilled models may name the larger model's heads, which would crash the process. In that case, and if none are
    named, all heads in the second half of the layers are used.
    """
    layers, heads = network["decoder_layers"], network["decoder_attention_heads"]
    if configured and all(0 <= layer < layers and 0 <= head < heads for layer, head in configured):
        return configured
    return [[layer, head] for layer in range(layers // 2, layers) for head in range(heads)]


def languages(tokenizer: Path) -> list[int]:
    from faster_whisper.tokenizer import _LANGUAGE_CODES
    from tokenizers import Tokenizer

    tokenizer_model = Tokenizer.from_file(str(tokenizer))
    ids = (tokenizer_model.token_to_id(f"<|{code}|>") for code in _LANGUAGE_CODES)
    return sorted(token_id for token_id in ids if token_id is not None)


if __name__ == "__main__":
    main()
