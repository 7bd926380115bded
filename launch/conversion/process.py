"""The converting process: `python -m launch.conversion.process PARENT FROM TO`; its answer is one line of JSON."""

import errno
import json
import os
import sys
import traceback
from pathlib import Path

import msgspec

from models.parent import die_with_parent
from models.sources.answers import Answer, FetchDone, FetchFailed

BESIDE = ("tokenizer.json", "preprocessor_config.json")
"""What the engine reads beside the weights; a tokenizer.json is made where there is none."""
FULL = (errno.ENOSPC, errno.EDQUOT)


def main() -> None:
    """Convert, answer, end. It ends with the process that started it."""
    die_with_parent(int(sys.argv[1]))
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing but the answer may go to the pipe
    os.nice(10)  # requests come first
    os.write(answers, msgspec.json.encode(_convert(Path(sys.argv[2]), Path(sys.argv[3]))) + b"\n")


def _convert(folder: Path, out: Path) -> Answer:
    try:
        if not any(folder.glob("*.safetensors")):
            return FetchFailed(
                422, "bad_weights", f"{folder} has no weights as safetensors, and pickles are never read."
            )
        from ctranslate2.converters import TransformersConverter

        beside = [name for name in BESIDE if (folder / name).is_file()]
        # float16 is what the published ones hold; the engine casts to what it computes in
        TransformersConverter(str(folder), copy_files=beside, low_cpu_mem_usage=True).convert(
            str(out), quantization="float16"
        )
        _keep_alignment_heads(folder, out)
        if "tokenizer.json" not in beside:
            from transformers import WhisperTokenizerFast

            WhisperTokenizerFast.from_pretrained(str(folder), local_files_only=True).save_pretrained(str(out))
    except OSError as error:
        if error.errno in FULL:
            return FetchFailed(503, "disk_full", f"The disk has no room for the converted {folder}: {error.strerror}.")
        return _failed(folder, error)
    except Exception as error:
        return _failed(folder, error)
    return FetchDone(str(out))


def _keep_alignment_heads(folder: Path, out: Path) -> None:
    """The converter may guess them; times of words need those that were trained for it."""
    told = folder / "generation_config.json"
    heads = json.loads(told.read_text()).get("alignment_heads") if told.is_file() else None
    if heads:
        config = json.loads((out / "config.json").read_text())
        (out / "config.json").write_text(json.dumps({**config, "alignment_heads": heads}))


def _failed(folder: Path, error: Exception) -> Answer:
    traceback.print_exc()
    return FetchFailed(
        422, "conversion_failed", f"{folder} cannot be converted: {type(error).__name__}: {error}"[:1000]
    )


if __name__ == "__main__":
    main()
