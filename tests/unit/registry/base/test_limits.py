"""Limits of a process that itself runs under limits, as on shared machines (`ulimit -v`)."""

import subprocess
import sys

import pytest

MOST = 2**33


@pytest.mark.parametrize(
    ("hard", "for_good", "expected"),
    [
        (-1, False, (MOST, -1)),
        (-1, True, (MOST, MOST)),
        (2 * MOST, False, (MOST, 2 * MOST)),
        (MOST // 2, False, (MOST // 2, MOST // 2)),
        (MOST // 2, True, (MOST // 2, MOST // 2)),
    ],
)
def test_a_limit_is_never_higher_than_allowed(hard: int, for_good: bool, expected: tuple[int, int]) -> None:
    script = (
        "import resource\n"
        "from registry.base.limits import limit\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({hard}, {hard}))\n"
        f"limit(resource.RLIMIT_AS, {MOST}, for_good={for_good})\n"
        "print(resource.getrlimit(resource.RLIMIT_AS))"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == str(expected)


@pytest.mark.parametrize(
    "command",
    [
        "from pathlib import Path; from batches.check_process import limit_process; limit_process()",
        "from adapters.check_process import _limit; from adapters.jobs import Job; from registry.bounds import Bounds; "
        "from types import SimpleNamespace as N; _limit(N(bounds=Bounds(), file_bytes=1))",
        "from models.speech.decoder import confine; confine(1 << 40)",
    ],
    ids=["batches", "adapters", "recordings"],
)
def test_processes_that_check_files_start_under_the_systems_limits(command: str) -> None:
    memory = f"r.setrlimit(r.RLIMIT_AS, ({MOST // 4}, {MOST // 4}))"
    limits = f"import resource as r; {memory}; r.setrlimit(r.RLIMIT_CPU, (99, 99)); "
    done = subprocess.run([sys.executable, "-c", limits + command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
