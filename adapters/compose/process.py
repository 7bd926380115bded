"""The composing process, `python -m adapters.compose.process`: job in, lines out.

It does one job and ends, or ends early with its parent. torch and peft are imported only for the job.
"""

import contextlib
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from adapters.compose.jobs import (
    Answer,
    Combine,
    ComposeDone,
    ComposeFailed,
    ComposeProgress,
    Job,
    Unmergeable,
    decode_job,
    encode,
)
from registry.base.importing import TRAINING, fast_imports
from registry.base.json import read_object
from registry.storage.files import is_full


def main() -> None:
    """Do the job given on standard input."""
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing but answers may go to the pipe
    job = decode_job(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.nice(10)  # requests come first
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # and so do engines, if memory runs out
    os.write(answers, encode(_work(job, answers)))


def _work(job: Job, answers: int) -> Answer:
    def tell(text: str, fraction: float) -> None:
        os.write(answers, encode(ComposeProgress(text, fraction)))

    try:
        if isinstance(job, Combine):
            with fast_imports(*TRAINING):
                from adapters.compose.peft_jobs import combine
            combine(job, tell)
        else:
            _check_weights(job.base)
            with fast_imports(*TRAINING):
                from adapters.compose.peft_jobs import merge
            merge(job, tell)
        return ComposeDone()
    except Unmergeable as error:
        return ComposeFailed("unfit", str(error))
    except Exception as error:
        traceback.print_exc()
        return ComposeFailed(
            "disk_full" if is_full(error, job.out) else "broken", f"{type(error).__name__}: {error}"[:500]
        )


def _check_weights(base: Path) -> None:
    """Raise Unmergeable for quantised weights, before the slow import of peft."""
    if read_object(base / "config.json").get("quantization_config"):
        raise Unmergeable("Nothing can be merged into quantised weights: merge into the base that they were made from.")


def _exit_with_parent() -> NoReturn:
    """End this process when its parent ends, which closes standard input."""
    while os.read(0, 1):  # not through sys.stdin, whose lock would be held when the interpreter ends
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
