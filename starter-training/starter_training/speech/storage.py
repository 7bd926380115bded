"""Writes the results of training: the model in transformers' layout, the state for resuming, and the record."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

from starter_training.speech import tokens
from starter_training.speech.network import Trainee

_PART_BYTES = 15 << 20


def save_model(model: Trainee, folder: Path) -> None:
    """Write float16 weights, configs, tokenizer and settings of the feature extractor."""
    folder.mkdir(parents=True, exist_ok=True)
    whisper = copy.deepcopy(model.whisper).cpu().half()
    whisper.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(
        tokenizer_object=tokens.build(),
        bos_token=end,
        eos_token=end,
        unk_token=end,
        pad_token=end,
        additional_special_tokens=list(tokens.NAMED[1:]),
    ).save_pretrained(folder)


def save_state(model: Trainee, steps: int, folder: Path) -> None:
    """Write float32 weights as ``resume.pt.00``, ``.01`` ... of at most 15 MiB each."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("resume.pt.*"):
        old.unlink()
    buffer = io.BytesIO()
    torch.save({"model": {name: value.cpu() for name, value in model.state_dict().items()}, "steps": steps}, buffer)
    data = buffer.getvalue()
    for part in range(-(-len(data) // _PART_BYTES)):
        (folder / f"resume.pt.{part:02}").write_bytes(data[part * _PART_BYTES : (part + 1) * _PART_BYTES])


def load_state(model: Trainee, folder: Path) -> int:
    """Load the state that ``save_state`` wrote; returns its steps. Raises FileNotFoundError if there is none."""
    parts = sorted(folder.glob("resume.pt.*"))
    if not parts:
        raise FileNotFoundError(f"no resume.pt.* in {folder}")
    data = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    state = torch.load(data, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    return int(state["steps"])
