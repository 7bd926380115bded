"""Jobs of the checking processes and their answers, one JSON object per line."""

from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from pathlib import Path
from typing import Literal

import msgspec

from adapters.types import Base
from registry.bounds import Bounds

FULL = (ENOSPC, EDQUOT, EFBIG, EROFS)


class Job(msgspec.Struct, frozen=True):
    """An adapter to check and normalise.

    `source`: a folder, or an archive if `unpack_to` names the empty folder to unpack it into.
    `out`: empty folder for the normalised files; None for a dry run.
    `file_bytes`: size of the largest file that may be written; default: `unpacked_bytes` of the bounds.
    `trusted`: the adapter may bring a chat template.
    """

    source: Path
    base: Base
    bounds: Bounds
    unpack_to: Path | None = None
    out: Path | None = None
    file_bytes: int | None = None
    trusted: bool = False


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`fit` comes with digest, rank and bytes, `unfit` with `faults`, all others with `detail`."""

    outcome: Literal["fit", "unfit", "disk_full", "broken"]
    digest: str = ""
    rank: int = 0
    bytes: int = 0
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    detail: str = ""


def encode_job(job: Job) -> bytes:
    """Encode a job as one line of JSON, including the newline."""
    return msgspec.json.encode(job, enc_hook=_plain) + b"\n"


def _plain(value: object) -> object:
    return value.model_dump() if isinstance(value, Bounds) else str(value)


def decode_job(line: str | bytes) -> Job:
    """Decode a line. Raises msgspec.DecodeError."""
    return msgspec.json.decode(
        line, type=Job, dec_hook=lambda kind, value: Bounds(**value) if kind is Bounds else kind(value)
    )
