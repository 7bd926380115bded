"""Reports what a run found: a summary on standard output, with the verdict in its last line, and everything as JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report.environment import record
from tests.fuzz import memory
from tests.fuzz.gaps import WORST

if TYPE_CHECKING:
    from tests.fuzz.__main__ import Run


def write(run: "Run", folder: Path) -> int:
    """Write the report. Return the exit code: 0: no findings; 1: findings; 2: stopped early."""
    _tell(run)
    code = 1 if run.found else 0 if run.whole else 2
    word = ("PASSED", "FAILED", "STOPPED EARLY")[code]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "report.json"
    file.write_text(json.dumps({"verdict": word.lower(), **_whole(run)}, indent=1) + "\n")
    reported = f"{len(run.found)} findings in {run.seconds / 60:.1f} minutes and {run.statuses.total()} requests"
    print(f"{word}: {reported}, seed {run.seed}; {file}", flush=True)
    return code


def _tell(run: "Run") -> None:
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(run.statuses.items()))
    print(
        f"\n{statuses}\nslowest answer {run.slowest[0]:.1f} s, {run.slowest[1]}; new in the corpus: {len(run.kept.new)}"
    )
    print(f"control stream: {json.dumps(run.totals)}; longest gap: {_steps(run.totals)}")
    for gap in sorted(run.gaps, key=lambda gap: -gap.seconds)[:5]:
        waited = f"waited for a CPU {gap.waited:.2f} s, of which others had {gap.others:.0%}"
        still = f"the machine stood still {gap.late:.2f} s, its host kept a CPU {gap.stolen:.2f} s"
        print(f"  gap {gap.seconds:.2f} s: {waited}; {still}; ours {gap.ours:.2f} s")
    over = [gap for gap in run.gaps if gap.seconds > WORST]
    print(f"  gaps over {WORST} s: {len(over)}, of them ours: {sum(gap.ours > WORST for gap in over)}")
    for name in memory.MAX_GROWTH if run.looks else ():
        first, last = run.looks[len(run.looks) // 5][name], run.looks[-1][name]
        ends = (f"{held.bytes / memory.MIB:.0f} MiB and {held.descriptors} descriptors" for held in (first, last))
        print(f"{name}: from {' to '.join(ends)}")
    for what in run.found:
        print(f"FOUND {what}")


def _steps(totals: dict[str, float]) -> str:
    """Return the longest gap as a number of usual ones."""
    streams, tokens = totals.get("streams", 0), totals.get("tokens", 0)
    usual = totals.get("seconds", 0.0) / tokens if streams and tokens else 0.0
    return f"{totals['longest'] / usual:.0f} steps of {1000 * usual:.1f} ms" if usual else "not known"


def _whole(run: "Run") -> dict[str, Any]:
    over = [gap for gap in run.gaps if gap.seconds > WORST]
    return {
        "findings": run.found,
        "environment": record(),
        "seconds": round(run.seconds),
        "seed": run.seed,
        "requests": run.statuses.total(),
        "statuses": {str(status): count for status, count in sorted(run.statuses.items())},
        "slowest": {"seconds": run.slowest[0], "request": run.slowest[1]},
        "control": run.totals,
        "gaps": {
            "over_half_a_second": len(over),
            "ours": sum(gap.ours > WORST for gap in over),
            "longest": [{**gap._asdict(), "ours": gap.ours} for gap in sorted(over, key=lambda g: -g.seconds)[:20]],
        },
        "memory": {
            name: [{"MiB": held.bytes // memory.MIB, "descriptors": held.descriptors} for held in _some(run, name)]
            for name in memory.MAX_GROWTH
        },
    }


def _some(run: "Run", name: str, count: int = 30) -> list[memory.MemoryFootprint]:
    """Return `count` measurements, spread over the whole time."""
    return [look[name] for look in run.looks[:: max(1, len(run.looks) // count)]]
