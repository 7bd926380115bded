"""Jobs of the composing process, one line of JSON each, and the server's side that runs them."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from adapters.types import Base
from registry.base.child import Child, out_of_memory
from registry.errors import BadRequest, EngineFailed, Unavailable, Unfit


class WeightedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter's folder in the store, and its weight."""

    folder: Path
    weight: float


class Combine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Combine adapters of one base into the empty folder `out`, in peft's layout.

    `kind`, `rank`: peft's `combination_type` and rank, from `plan`.
    """

    base: Base
    parts: tuple[WeightedAdapter, ...]
    kind: str
    rank: int
    density: float
    seed: int
    out: Path


class Merge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Merge an adapter into the model in `base`, written into the empty folder `out`."""

    base: Path
    adapter: Path
    out: Path
    trust_remote_code: bool = False


Job = Combine | Merge


class Unmergeable(Exception):
    """The files cannot be composed; the message says why."""


class ComposeProgress(msgspec.Struct, frozen=True, tag=True):
    text: str
    fraction: float


class ComposeDone(msgspec.Struct, frozen=True, tag=True):
    """The last line if the folder is complete."""


class ComposeFailed(msgspec.Struct, frozen=True, tag=True):
    """The last line after a failure. `unfit`: these files cannot be composed."""

    kind: Literal["unfit", "disk_full", "broken"]
    message: str


Answer = ComposeProgress | ComposeDone | ComposeFailed


def encode(message: Job | Answer) -> bytes:
    """Encode a message as one line, including the newline."""
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
    """Return peft's `combination_type` and the rank of the result.

    An adapter changes a layer by the product B·A, and the products are to be combined:

    | method     | peft's type                                | result                                        |
    |------------|--------------------------------------------|-----------------------------------------------|
    | linear     | `cat` if the ranks sum to max_rank or less | the exact weighted sum                        |
    | linear     | `svd` otherwise                            | its best approximation of rank max_rank       |
    | ties, dare | `ties_svd`, `dare_linear_svd`              | best approximation of rank min(sum, max_rank) |
    | halves     | `linear`, `ties`, `dare_linear`            | A from all A, B from all B: fast but rough    |

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


log = logging.getLogger("roundhouse.adapters")
_INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR")


async def compose(
    job: Job, seconds: float | None = None, tell: Callable[[ComposeProgress], None] = lambda _: None
) -> None:
    """Run a job to its end. However this call ends, the process ends with it.

    Raises Unfit, Unavailable (codes disk_full, compose_timeout, out_of_memory), EngineFailed (code compose_failed).
    """
    process = await Child.python(
        "adapters.compose.process",
        env={**{name: os.environ[name] for name in _INHERITED if name in os.environ},
             "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1",
             "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore",
             "OMP_WAIT_POLICY": "PASSIVE"},  # threads that spin would take the cores from engines
    )  # fmt: skip
    last: Answer | None = None
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):  # the process has ended; its last line, if any, says why
                process.stdin.write(encode(job))
                await process.stdin.drain()
            async for line in process.stdout:
                last = decode_answer(line)
                if isinstance(last, ComposeProgress):
                    tell(last)
    except TimeoutError:
        raise Unavailable(
            f"Combining took more than {seconds:.0f} s and was stopped. Method 'linear' takes seconds if the ranks add "
            "up to at most the base's max_rank; 'halves' makes the others fast.",
            code="compose_timeout",
        ) from None
    finally:
        process.kill()
        await asyncio.shield(process.wait())
    if (last is None or isinstance(last, ComposeProgress)) and await process.ran_out_of_memory():
        raise out_of_memory("while it worked on the adapters. Nothing was changed")
    _raise(last)


def _raise(last: Answer | None) -> None:
    """Raise the failure that the process's last line reports."""
    if last is None or isinstance(last, ComposeProgress):
        log.error("the composing process died", extra={"last": last.text if last else "start"})
        raise EngineFailed(
            "The process that works on the adapters was killed. Nothing was changed.",
            code="compose_failed",
        )
    if not isinstance(last, ComposeFailed):
        return
    if last.kind == "unfit":
        raise Unfit(last.message, code="unfit_adapter")
    if last.kind == "disk_full":
        raise Unavailable(
            f"The disk is full, or cannot be written: {last.message}. Nothing was changed.", code="disk_full"
        )
    log.error("composing adapters failed", extra={"detail": last.message})
    raise EngineFailed(f"The adapters could not be processed: {last.message}.", code="compose_failed")
