"""Jobs and answers of the composing process: JSON, one line each."""

from pathlib import Path
from typing import Literal

import msgspec

from adapters.types import Base


class WeightedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """One of several adapters: the folder that the store keeps it in, and what its change of the base counts."""

    folder: Path
    weight: float


class Combine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One adapter from several of one base, written into the empty folder `out` in peft's layout.

    `kind`, `rank`: peft's words for how, from `adapters.compose.plan`.
    """

    base: Base
    parts: tuple[WeightedAdapter, ...]
    kind: str
    rank: int
    density: float
    seed: int
    out: Path


class Merge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model in `base` with the adapter in `adapter` added to its weights, written into the empty folder `out`."""

    base: Path
    adapter: Path
    out: Path
    trust_remote_code: bool = False


Job = Combine | Merge


class Unmergeable(Exception):
    """The text says why."""


class ComposeProgress(msgspec.Struct, frozen=True, tag=True):
    text: str
    fraction: float


class ComposeDone(msgspec.Struct, frozen=True, tag=True):
    """The last line: the folder is complete."""


class ComposeFailed(msgspec.Struct, frozen=True, tag=True):
    """The last line. `unfit`: it cannot be done with these files, and `message` says why."""

    kind: Literal["unfit", "disk_full", "broken"]
    message: str


Answer = ComposeProgress | ComposeDone | ComposeFailed


def encode(message: Job | Answer) -> bytes:
    """One line, its end included."""
    return msgspec.json.encode(message, enc_hook=str) + b"\n"


def decode_job(line: str | bytes) -> Job:
    job: Job = msgspec.json.decode(line, type=Job, dec_hook=lambda kind, value: kind(value))
    return job


def decode_answer(line: bytes) -> Answer:
    answer: Answer = msgspec.json.decode(line, type=Answer)
    return answer
