"""`roundhouse doctor`."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from runtime.cli.options import AsJson
from runtime.cli.output import emit, note, table


class Accelerator(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


def doctor(
    device: Annotated[
        Accelerator, typer.Option("--device", help="What the server is to run on; auto: a GPU if there is one.")
    ] = Accelerator.AUTO,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where the server is to listen; 0: not said yet.")
    ] = 8000,
    as_json: AsJson = False,
) -> None:
    """Check that this host has all that the server needs, and say how to get what is missing.

    The exit code is 1 if something is missing that the server cannot run without.

    Example: roundhouse doctor --device cuda
    """
    from runtime.cli.local.host import kind_of_host, needs

    kind = kind_of_host() if device is Accelerator.AUTO else "cuda" if device is Accelerator.CUDA else "cpu"
    found = list(needs(kind, port))
    missing = [need for need in found if not need.met]
    if as_json:
        enough = all(need.optional for need in missing)
        emit({"object": "doctor", "device": kind, "ok": enough, "needs": [asdict(need) for need in found]})
    else:
        words = {True: "ok", False: "MISSING"}
        rows = [[n.name, "advised" if n.optional and not n.met else words[n.met], n.found] for n in found]
        table([f"FOR {kind.upper()}", "", "FOUND"], rows)
        for need in missing:
            note(f"{need.name}: {need.help}")
    if not all(need.optional for need in missing):
        raise typer.Exit(1)
