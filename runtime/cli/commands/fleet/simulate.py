"""`roundhouse fleet simulate`: a fleet on a virtual clock, in a separate process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from registry.base.child import PACKAGES, with_our_packages
from runtime.cli.failures import RefusedError, UsageError
from runtime.cli.options import AsJson
from runtime.cli.output import pairs, show
from runtime.cli.remote.client import Json
from runtime.cli.remote.progress import bar


def simulate(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.yaml", help="The fleet, its traffic and its faults.", show_default=False),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, max=4096, help="Instead of a file, simulate this many nodes for a minute, losing a rack."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a fleet with the policies that choose nodes and place models in a real one. Needs no server.

    A file describes what happens, such as: nodes: 200, load: 0.8, faults: [{kind: cut, at: 20, nodes: 8, seconds: 30}].
    Kinds of faults: node, rack, cut, late, slow, database, upgrade, placers. 1,000 nodes take about a minute.

    Examples: roundhouse fleet simulate --nodes 64; roundhouse fleet simulate fleet.yaml --json
    """
    if (file is None) == (nodes is None):
        raise UsageError("Name either a file or --nodes.")
    show(_run(["--nodes", str(nodes)] if file is None else [str(file.absolute())]), as_json, _show)


def _run(words: list[str]) -> Json:
    """Return the child's figures. Raises UsageError if it rejects the input, RefusedError if it ended early."""
    command = [sys.executable, "-P", "-m", "fleet.simulation", *words]
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PACKAGES,
            env=with_our_packages(os.environ),
        ) as child,
        bar() as progress,
    ):  # fmt: skip
        assert child.stdout is not None
        assert child.stderr is not None
        result: Json = {}
        try:
            for line in child.stdout:
                result = json.loads(line)
                if "part" in result:
                    progress.show("simulating", result["part"])
            message = child.stderr.read().strip()
        finally:
            child.kill()
    if child.returncode == UsageError.exit_code:
        raise UsageError(message.splitlines()[-1] if message else "This cannot be simulated.")
    if child.returncode or "part" in result:
        raise RefusedError(f"The simulation ended early, with exit code {child.returncode}. {message[-500:]}".strip())
    return result


def _show(figures: Json) -> None:
    pairs(
        [
            ("fleet", f"{figures['nodes']} nodes for {figures['seconds']:g} s, seed {figures['seed']}"),
            (
                "requests",
                f"{figures['requests']}: {figures['answered']} answered ({figures['retried']} by a second node), "
                f"{figures['refused']} refused by a limit, {figures['failed']} failed, {figures['broken']} broken off",
            ),
            (
                "first token",
                f"p50 {figures['ttft_p50'] * 1000:.0f} ms, p99 {figures['ttft_p99'] * 1000:.0f} ms; "
                f"{figures['ttft_ratio']:.2f} times the p99 of one ideal queue",
            ),
            ("adapters", f"{figures['adapter_hits']:.1%} found in a place"),
            ("load", f"{figures['load_ratio']:.2f} times the mean on the fullest node"),
            ("moves", f"{figures['moves']}: {figures['moves_node_hour']:g} for each node and hour"),
            ("limits", f"{figures['over_admitted']} requests too many; {figures['limit_used']:.0%} of a limit used"),
        ]
    )
