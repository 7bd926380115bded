"""`roundhouse fleet ray`: start a fleet's servers on several machines, and restart them when they end."""

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from registry.base.child import PACKAGES
from runtime.cli.failures import RefusedError, translated_faults
from runtime.cli.options import AsJson
from runtime.cli.output import emit, note
from runtime.cli.remote.client import Json

if TYPE_CHECKING:
    from fleet.launchers.cluster import Cluster

File = Annotated[
    Path, typer.Argument(metavar="CLUSTER.yaml", help="File with the servers of each machine.", show_default=False)
]
OnHost = Annotated[
    str | None,
    typer.Option("--host", help="Name of this machine in the file.", show_default="the machine of Ray's head"),
]
app = typer.Typer(help="Servers on machines connected by Ray.", no_args_is_help=True)


@app.command()
def up(file: File, host: OnHost = None, as_json: AsJson = False) -> None:
    """Start Ray on this machine and, on the machine of Ray's head, all servers of the file.

    Leaves running servers as they are. Run it on each other machine first, with --host and with a copy of the token in
    the file's folder.

    Example: roundhouse fleet ray up cluster.yaml
    """
    with translated_faults():
        from fleet.launchers.cluster import read_cluster
        from fleet.launchers.head import start_ray

        cluster, servers = read_cluster(file), list[Json]()
        here = host or cluster.head
        note(f"Ray {'started' if start_ray(cluster, here) else 'already runs'} on {here}, log in {cluster.folder}")
        if here == cluster.head:
            servers = _drive(cluster, "up", file)
        if as_json:
            emit({"object": "list", "data": servers})


@app.command()
def down(file: File, host: OnHost = None, as_json: AsJson = False) -> None:
    """Stop Ray on this machine and, on the machine of Ray's head, all servers of the file.

    Example: roundhouse fleet ray down cluster.yaml
    """
    with translated_faults():
        from fleet.launchers.cluster import read_cluster
        from fleet.launchers.head import end_ray

        cluster, servers = read_cluster(file), list[Json]()
        here = host or cluster.head
        if here == cluster.head:
            servers = _drive(cluster, "down", file)
        note(f"Ray {'stopped' if end_ray(cluster) else 'was not running'} on {here}")
        if as_json:
            emit({"object": "list", "data": servers})


def _drive(cluster: "Cluster", command: str, file: Path) -> list[Json]:
    """Run the driver in its own process, so that neither servers nor the command line are part of Ray."""
    from fleet.launchers.head import has_head, ray_environment, ray_program

    ray_program()  # without it the driver would end with a traceback
    if not has_head(cluster):
        raise RefusedError(
            f"Ray is not running on {cluster.head}. Start it with `roundhouse fleet ray up`, which takes over the "
            "running servers."
        )
    words = [sys.executable, "-P", "-m", "fleet.launchers.driver", command, str(file.absolute())]
    done = subprocess.run(words, cwd=PACKAGES, env=ray_environment(cluster), stdout=subprocess.PIPE, text=True)
    servers: list[Json] = [json.loads(line) for line in done.stdout.splitlines()]
    for server in servers:
        state = "has ended" if command == "down" else f"runs as {server['pid']}" if server["pid"] else "has no machine"
        note(f"{server['name']} {state} on {server['host']}")
    if done.returncode:
        raise RefusedError(
            "Not all servers were reached. Was `roundhouse fleet ray up --host` run on each machine, and is Ray "
            "running on this one?"
        )
    return servers
