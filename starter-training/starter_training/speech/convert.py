"""Convert a trained starter-speech to CTranslate2: ``python -m starter_training.speech.convert HF_FOLDER OUT``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

_COPIED = ["tokenizer.json", "preprocessor_config.json"]


def convert(source: Path, out: Path, quantization: str = "int8") -> int:
    """Write ``out`` for faster-whisper and return its size in bytes.

    quantization: a type of CTranslate2, such as int8, int8_float16 or float16.
    """
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(source), copy_files=_COPIED).convert(str(out), quantization=quantization, force=True)
    config_path = out / "config.json"
    config = json.loads(config_path.read_text())
    # The converter assumes all heads of the upper layers; word timestamps need those that were trained for them.
    config["alignment_heads"] = json.loads((source / "generation_config.json").read_text())["alignment_heads"]
    config_path.write_text(json.dumps(config, indent=2) + "\n")
    for path in out.iterdir():
        path.chmod(0o644)
    return sum(path.stat().st_size for path in out.iterdir())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Convert starter-speech for faster-whisper.")
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quantization", default="int8")
    options = parser.parse_args()
    print(f"{options.out}: {convert(options.source, options.out, options.quantization)} bytes")


if __name__ == "__main__":
    main()
