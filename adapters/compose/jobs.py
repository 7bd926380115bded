"""Messages of the composing process: JSON, one line each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from adapters.types import Base
from registry.errors import BadRequest


class WeightedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter's folder in the store, and the weight of its change."""

    folder: Path
    weight: float


class Combine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Combine adapters of one base into the empty folder `out`, in peft's layout.

    `kind`, `rank`: peft's words for how, from `adapters.compose.jobs`.
    """

    base: Base
    parts: tuple[WeightedAdapter, ...]
    kind: str
    rank: int
    density: float
    seed: int
    out: Path


class Merge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Add an adapter to the model in `base`, written into the empty folder `out`."""

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
    """The last line. `unfit`: these files cannot be composed; `message` says why."""

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


Method = Literal["linear", "ties", "dare"]
MOST_PARTS = 8
_PEFT = {"linear": "linear", "ties": "ties", "dare": "dare_linear"}


def plan(method: Method, ranks: Sequence[int], max_rank: int, *, halves: bool = False) -> tuple[str, int]:
    """peft's `combination_type`, and the rank of the result.

    The change that an adapter makes to a layer is the product B·A. What is meant is a combination of products:

    | method     | peft's way                                | result                                        |
    |------------|-------------------------------------------|-----------------------------------------------|
    | linear     | `cat` while the ranks add up to max_rank  | the weighted sum, exactly                     |
    | linear     | `svd` above                               | the nearest to it that has max_rank           |
    | ties, dare | `ties_svd`, `dare_linear_svd`             | the nearest of the ranks' sum, or of max_rank |
    | halves     | `linear`, `ties`, `dare_linear`           | A from all A, B from all B: fast and rough    |

    Raises BadRequest for halves of unequal ranks, which cannot be added.
    """
    if halves:
        if len(set(ranks)) > 1:
            raise BadRequest(
                f"Halves of ranks {', '.join(map(str, ranks))} cannot be combined: leave 'halves' out, or choose "
                "adapters of one rank.",
                param="halves",
            )
        return _PEFT[method], ranks[0]
    rank = min(sum(ranks), max_rank)
    if method == "linear":
        return ("cat" if sum(ranks) <= max_rank else "svd"), rank
    return f"{_PEFT[method]}_svd", rank
