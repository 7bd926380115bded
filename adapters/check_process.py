"""The process that checks adapters: `python -m adapters.check_process`, JSON lines in and out.

One job per line (`Job`), one answer per line (`CheckAnswer`), until the input ends. It reads untrusted files, so it
runs under its own limits and holds no secrets; if it dies, `adapters.checker` starts another. To start fast it imports
numpy and pydantic but no engine and no torch, and transformers only for adapters with their own chat template.
"""

import os
import resource
import signal
import sys
import traceback
from dataclasses import asdict
from typing import Literal

import msgspec

from adapters.content.archive import unpack
from adapters.content.faults import Faults
from adapters.content.forms import inner_folder
from adapters.content.normalise import normalise
from adapters.content.tensor_file import BadFile
from adapters.content.validate import examine
from adapters.jobs import FULL, CheckAnswer, Job, decode_job
from registry.base.limits import limit


def check(job: Job) -> CheckAnswer:
    """Unpack, examine and normalise."""
    try:
        folder = job.source
        if job.unpack_to is not None:
            faults = Faults()
            unpack(job.source, job.unpack_to, job.bounds, faults)
            if faults:
                return CheckAnswer(outcome="unfit", faults=tuple(faults.sentences()))
            folder = job.unpack_to
        else:
            try:
                folder = inner_folder(folder)
            except ValueError as error:
                return CheckAnswer(outcome="unfit", faults=(str(error),))
        with examine(folder, job.base, job.bounds, trusted=job.trusted) as examination:
            if not examination.faults:
                try:
                    return CheckAnswer(outcome="fit", **asdict(normalise(examination, job.base, job.out)))
                except BadFile as error:
                    examination.faults.add(f"adapter_model.safetensors: {error}.")
            return CheckAnswer(outcome="unfit", faults=tuple(examination.faults.sentences()))
    except TimeoutError as error:  # before OSError, its base class
        return CheckAnswer(outcome="unfit", faults=(str(error),))
    except OSError as error:
        outcome: Literal["disk_full", "broken"] = "disk_full" if error.errno in FULL else "broken"
        return CheckAnswer(outcome=outcome, detail=str(error))
    except MemoryError:
        return CheckAnswer(outcome="unfit", faults=("Reading it needs more memory than the checking process may use.",))


def _limit(job: Job) -> None:
    """Limit memory, CPU time (cumulative over jobs) and size of written files for a job."""
    bounds = job.bounds
    limit(resource.RLIMIT_AS, bounds.adapter_check_memory)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + bounds.adapter_check_seconds) + 1
    limit(resource.RLIMIT_CPU, seconds)
    file_bytes = bounds.unpacked_bytes if job.file_bytes is None else job.file_bytes
    limit(resource.RLIMIT_FSIZE, file_bytes)


def _too_long(*_: object) -> None:
    raise TimeoutError("Checking it takes too long: a pattern in adapter_config.json or the archive is hostile.")


def main() -> None:
    """Serve jobs until the input ends."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # such as the server's port, which its event loop may pass on
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write over the limit raises EFBIG instead
    signal.signal(signal.SIGALRM, _too_long)
    limit(resource.RLIMIT_CORE, 0, for_good=True)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # only answers may go to the pipe
    answers.write("ready\n")
    for line in sys.stdin:
        try:
            job = decode_job(line)
            _limit(job)
            signal.setitimer(signal.ITIMER_REAL, job.bounds.adapter_check_seconds)
            try:
                answer = check(job)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Exception:  # our own fault: report it and go on
            answer = CheckAnswer(outcome="broken", detail=traceback.format_exc(limit=4)[-2000:])
        answers.write(msgspec.json.encode(answer).decode() + "\n")


if __name__ == "__main__":
    main()
