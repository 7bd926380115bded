"""The acceptance run on a GPU: starts, right answers, two models at once, sleep and wake, speed.

    make gpu-acceptance [ARGS="--shape tiny eager graphs large"]

Steps, always in this order (default: all):
  eager   start without compilation, the answers of twenty adapters, two models at once, sleep and wake
  swapped the answers of the twenty on four places, which shows that each swap brings the right weights
  others  embeddings, rerank and speech, compared with the same on the CPU
  graphs  the same answers with compilation and CUDA graphs, and the speed of the small model
  large   an 8B-shaped model with forty adapters, compared with stock `vllm serve`; takes 30 GB on disk

  --parts, --budget   instead of the steps, run timed parts of an 8B shape with random weights (`benchmarks.gpu.timed`)
                      in the given order, as many as fit into the budget. --stock also measures `vllm serve`; --resume
                      continues the results file of an earlier run and skips what it has. The run ends with a table of
                      its aims, which `benchmarks.gpu.bars` prints again

Every result is written immediately, as JSON with hardware, versions and commands. The exit code is 1 if something is
wrong, 2 without a GPU. `--shape tiny` tries everything on any machine; its times mean nothing.
"""

import argparse
import math
import shutil
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from benchmarks.gpu import bars, correctness, large, other_tasks, timed
from benchmarks.gpu.report import OtherRun, Report, text_of_fault
from benchmarks.gpu.shapes import SHAPES, Shape
from benchmarks.harness import Bench, RunSettings
from benchmarks.load.budget import Budget, exit_after
from benchmarks.load.clients import on_loop
from benchmarks.report import environment
from runtime.cli.local.host import kind_of_host

STEPS = ("eager", "swapped", "others", "graphs", "large")
FOLDER = environment.ROOT / "benchmarks" / "results" / "gpu"
GRACE = 20.0
"""Seconds after the budget in which servers may end."""


def results_file(folder: Path, shape: str, now: datetime, *, resume: bool) -> Path:
    """Return today's file, or yesterday's if it is resumed after midnight and there is none of today."""
    today, yesterday = (folder / f"{day:%Y-%m-%d}-{shape}.json" for day in (now, now - timedelta(days=1)))
    return yesterday if resume and not today.exists() and yesterday.exists() else today


def recipe_value(key: str, text: str) -> object:
    """Parse a value of the recipe as YAML. vLLM's flags that are JSON stay text."""
    value: object = yaml.safe_load(text)
    return text if key.startswith("engine.flags.") and isinstance(value, dict) else value


async def run(names: list[str], shape: Shape, device: str, report: Report, work: Path) -> None:
    """Run the steps. One that raises is recorded as wrong, and the next one runs."""
    tiny = shape.name == "tiny"
    bench = Bench("large", RunSettings(quick=False, tiny=tiny, smoke=tiny, seed=0, work=work))

    async def measured() -> None:
        is_done = False
        try:
            await large.run(bench, shape)
            is_done = True
        finally:
            report.add(f"large, {shape.name}", is_done and not bench.failures, **bench.result())

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
        except Exception as fault:  # the other steps are still worth running
            traceback.print_exc()
            report.add(f"{name} ended early", False, error=text_of_fault(fault))


def parse() -> argparse.Namespace:
    """Return the command line's options, checked, with `parts` as a list and `is_timed`: whether to run these."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument(
        "--results",
        type=Path,
        help=f"default: {FOLDER}/DATE-SHAPE.json, or in {tempfile.gettempdir()} for --shape tiny",
    )
    parser.add_argument("--parts", help=f"timed parts, separated by commas: {', '.join(timed.PARTS)} (default: all)")
    parser.add_argument("--budget", type=float, help="seconds for the timed parts (default: no limit)")
    parser.add_argument("--stock", action="store_true", help="also measure the timed parts on stock `vllm serve`")
    parser.add_argument("--resume", action="store_true", help="skip the timed parts that the results file already has")
    parser.add_argument(
        "--recipe",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a value of the timed model's recipe, such as memory.adapters.arena=true; may be repeated",
    )
    parser.add_argument("--work", type=Path, help="folder for models, data and logs, not deleted afterwards")
    options = parser.parse_args()
    if unknown := set(options.steps) - set(STEPS):
        parser.error(f"unknown step {', '.join(sorted(unknown))}; choose from {', '.join(STEPS)}")
    options.is_timed = bool(options.parts or options.resume) or options.budget is not None
    options.parts = options.parts.split(",") if options.parts else list(timed.PARTS)
    if unknown := set(options.parts) - set(timed.PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(timed.PARTS)}")
    if options.is_timed and options.steps:
        parser.error("name either steps, or --parts, --budget and --resume")
    if incomplete := [value for value in options.recipe if "=" not in value]:
        parser.error(f"--recipe {incomplete[0]}: write KEY=VALUE")
    return options


def main() -> int:
    options = parse()
    values = {key: recipe_value(key, text) for key, _, text in (one.partition("=") for one in options.recipe)}
    budget = Budget(math.inf if options.budget is None else options.budget)
    device = "cuda:0" if kind_of_host() == "cuda" else "cpu"
    if device == "cpu" and options.shape != "tiny":
        print("error: no GPU was found; `roundhouse doctor --device cuda` says why. To try this script without one, "
              "use --shape tiny.", file=sys.stderr)  # fmt: skip
        return 2
    environment.go_first()
    folder = Path(tempfile.gettempdir()) if options.shape == "tiny" else FOLDER
    file = options.results or results_file(folder, options.shape, datetime.now(UTC), resume=options.resume)
    try:
        report = Report(file, device, shape=options.shape, resume=options.resume, recipe=values)
    except OtherRun as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    last_end = None if options.budget is None else exit_after(budget.left + GRACE)
    work = (options.work or Path(tempfile.mkdtemp(prefix="roundhouse-gpu-"))).absolute()
    try:
        shape = SHAPES[options.shape]
        if options.is_timed:
            measured = timed.TimedRun(report, shape, device, work, budget, stock=options.stock, values=values)
            on_loop(lambda: measured.run(options.parts))
        else:
            on_loop(lambda: run(list(options.steps or STEPS), shape, device, report, work))
    finally:
        report.close()
        if last_end is not None:
            last_end.cancel()
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    if options.is_timed:
        print(bars.table(bars.bars(report.steps)))
        if text := bars.warning(report.environment):
            print(f"note: {text}")
    print(f"results: {file}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
