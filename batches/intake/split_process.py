"""The process that makes an input file of a body: `python -m batches.intake.split_process`, a job in, a summary out."""

import sys
from pathlib import Path

import msgspec

from batches.check_process import limit_process
from batches.intake.split import SplitJob, split


def encode_job(job: SplitJob) -> bytes:
    """One line of JSON, its end included."""
    return (
        msgspec.json.encode(job, enc_hook=lambda value: str(value) if isinstance(value, Path) else int(value)) + b"\n"
    )


def main() -> None:
    """Answer one job."""
    limit_process()
    line = sys.stdin.buffer.readline()
    job = msgspec.json.decode(line, type=SplitJob, dec_hook=lambda kind, value: kind(value))
    limit_process(job.seconds)
    sys.stdout.buffer.write(msgspec.json.encode(split(job)) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
