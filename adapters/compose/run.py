"""Starts the composing process and follows it."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

from adapters.compose.jobs import Answer, ComposeFailed, ComposeProgress, Job, decode_answer, encode
from registry.base.child import Child
from registry.errors import EngineFailed, Unavailable, Unfit

log = logging.getLogger("roundhouse.adapters")
_INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR")


async def compose(
    job: Job, seconds: float | None = None, tell: Callable[[ComposeProgress], None] = lambda _: None
) -> None:
    """Run a job to its end. Whatever ends this call ends the process.

    Raises Unfit, Unavailable (codes disk_full, compose_timeout), EngineFailed (code compose_failed).
    """
    process = await Child.python(
        "adapters.compose.process",
        env={**{name: os.environ[name] for name in _INHERITED if name in os.environ},
             "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1",
             "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    last: Answer | None = None
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):  # it has ended: its answer, or none, tells why
                process.stdin.write(encode(job))
                await process.stdin.drain()
            async for line in process.stdout:
                last = decode_answer(line)
                if isinstance(last, ComposeProgress):
                    tell(last)
    except TimeoutError:
        raise Unavailable(
            f"Combining took more than {seconds:.0f} s and was ended. Method 'linear' is done in seconds where ranks "
            "add up to at most the base's max_rank; 'halves' makes the others fast.",
            code="compose_timeout",
        ) from None
    finally:
        process.kill()
        await asyncio.shield(process.wait())
    _raise(last)


def _raise(last: Answer | None) -> None:
    """Raise the failure that the process's last line reports."""
    if last is None or isinstance(last, ComposeProgress):
        log.error("the composing process died", extra={"last": last.text if last else "start"})
        raise EngineFailed(
            "The process that works on the adapters was ended, probably because memory had run out. Nothing was "
            "changed.",
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
    raise EngineFailed(f"The adapters could not be worked on: {last.message}.", code="compose_failed")
