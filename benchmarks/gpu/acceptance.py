"""The first minutes on a GPU: does it start, is it right, do two models share it, do they sleep and wake, how fast.

    make gpu-acceptance [ARGS="--shape tiny eager graphs large"]

Steps, in this order; without names, all of them:
  eager   start without compilation, twenty right answers, two models at once, sleep and wake
  swapped the twenty on four places: each swap is seen to bring the right weights
  others  embeddings, rerank and speech, beside the same on the CPU
  graphs  the same answers with compilation and CUDA graphs, and how fast the small model is
  large   an 8B-shaped model with forty adapters, beside stock `vllm serve`; takes 30 GB on the disk

  --parts, --budget   in place of the steps: timed parts of an 8B shape with random weights (`benchmarks.gpu.timed`),
                      in the order in which they are named, as far as so many seconds allow; --stock: beside
                      `vllm serve`; --resume: go on with the results file of an earlier run, without what it has.
                      The run ends with a table of its aims, which `benchmarks.gpu.bars` prints again

Every result is written at once, as JSON with hardware, versions and commands. The exit code is 1 when something is
wrong, 2 without a GPU. `--shape tiny` tries all of it on any machine: its times mean nothing.
"""

import argparse
import math
import shutil
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import yaml

from benchmarks.gpu import bars, correctness, large, other_tasks, timed
from benchmarks.gpu.report import OtherRun, Report
from benchmarks.gpu.shapes import SHAPES, Shape
from benchmarks.harness import Bench, RunSettings
from benchmarks.load.budget import Budget, exit_after
from benchmarks.load.clients import on_loop
from benchmarks.report import environment
from models import nvml

STEPS = ("eager", "swapped", "others", "graphs", "large")
FOLDER = environment.ROOT / "benchmarks" / "results" / "gpu"
GRACE = 20.0
"""Seconds after the budget for the servers' end."""


def device_of_host() -> str:
    """'cuda:0', or 'cpu'."""
    try:
        nvml.gpu("cuda:0")
    except nvml.NoGpu:
        return "cpu"
    return "cuda:0"


def recipe_value(key: str, text: str) -> object:
    """A value of the recipe as YAML has it. Flags of vLLM that are JSON stay text."""
    value: object = yaml.safe_load(text)
    return text if key.startswith("engine.flags.") and isinstance(value, dict) else value


async def run(names: list[str], shape: Shape, device: str, report: Report, work: Path) -> None:
    """A step that cannot go on is told, and the next one begins."""
    tiny = shape.name == "tiny"
    bench = Bench("large", RunSettings(quick=False, tiny=tiny, smoke=tiny, seed=0, work=work))

    async def measured() -> None:
        try:
            await large.run(bench, shape)
        finally:
            report.add(f"large, {shape.name}", not bench.failures, **bench.result())

    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "eager": lambda: correctness.eager(report, device, work, 1 if tiny else 3),
        "swapped": lambda: correctness.swapped(report, device, work),
        "others": lambda: other_tasks.run(report, device, work / "others"),
        "graphs": lambda: correctness.graphs(report, device, work, 4 if tiny else 50),
        "large": measured,
    }
    for name in names:
        try:
            await steps[name]()
        except Exception as fault:  # whatever it was: the other steps are worth their minutes
            traceback.print_exc()
            report.add(f"{name} ended early", False, error=f"{type(fault).__name__}: {fault}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument(
        "--results", type=Path, help=f"default: {FOLDER}/DATE-SHAPE.json; of a tiny one, in {tempfile.gettempdir()}"
    )
    parser.add_argument("--parts", help=f"timed parts, separated by commas: {', '.join(timed.PARTS)} (default: all)")
    parser.add_argument("--budget", type=float, help="seconds for the timed parts (default: no limit)")
    parser.add_argument("--stock", action="store_true", help="the timed parts beside stock `vllm serve`, too")
    parser.add_argument("--resume", action="store_true", help="leave out the timed parts that the results file has")
    parser.add_argument(
        "--recipe",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="value of the timed model's recipe, such as memory.adapters.arena=true; repeat it for several",
    )
    parser.add_argument("--work", type=Path, help="folder for models, data and logs, kept afterwards")
    options = parser.parse_args()
    if unknown := set(options.steps) - set(STEPS):
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    parts = options.parts.split(",") if options.parts else list(timed.PARTS)
    is_timed = bool(options.parts or options.budget or options.resume)
    if unknown := set(parts) - set(timed.PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(timed.PARTS)}")
    if is_timed and options.steps:
        parser.error("steps, or --parts, --budget and --resume: not both")
    if incomplete := [value for value in options.recipe if "=" not in value]:
        parser.error(f"--recipe {incomplete[0]}: write KEY=VALUE")
    values = {key: recipe_value(key, text) for key, _, text in (one.partition("=") for one in options.recipe)}
    budget = Budget(options.budget or math.inf)
    device = device_of_host()
    if device == "cpu" and options.shape != "tiny":
        print("error: there is no GPU to accept; `roundhouse doctor --device cuda` says why, and --shape tiny tries "
              "this script.", file=sys.stderr)  # fmt: skip
        return 2
    environment.go_first()
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    folder = Path(tempfile.gettempdir()) if options.shape == "tiny" else FOLDER
    file = options.results or folder / f"{day}-{options.shape}.json"
    try:
        report = Report(file, device, resume=options.resume, recipe=values)
    except OtherRun as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    last_end = exit_after(budget.left + GRACE) if options.budget else None
    work = (options.work or Path(tempfile.mkdtemp(prefix="roundhouse-gpu-"))).absolute()
    try:
        shape = SHAPES[options.shape]
        if is_timed:
            measured = timed.TimedRun(report, shape, device, work, budget, stock=options.stock, values=values)
            on_loop(lambda: measured.run(parts))
        else:
            on_loop(lambda: run(list(options.steps or STEPS), shape, device, report, work))
    finally:
        report.close()
        if last_end is not None:
            last_end.cancel()
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    if is_timed:
        print(bars.table(bars.bars(report.steps)))
        if text := bars.warning(report.environment):
            print(f"note: {text}")
    print(f"results: {file}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
