"""`roundhouse fleet ray`: start a fleet's servers on several machines, and start them again when they end."""

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
    Path, typer.Argument(metavar="CLUSTER.yaml", help="Which server runs on which machine.", show_default=False)
]
OnHost = Annotated[
    str | None,
    typer.Option("--host", help="This machine, as the file calls it.", show_default="the machine of Ray's head"),
]
app = typer.Typer(help="Servers on machines that Ray joins.", no_args_is_help=True)


@app.command()
def up(file: File, host: OnHost = None, as_json: AsJson = False) -> None:
    """Start Ray on this machine, and on that of Ray's head all servers of the file. What runs already stays as it is.

    Call it with --host on each other machine first, with a copy of the token in the file's folder.

    Example: roundhouse fleet ray up cluster.yaml
    """
    with translated_faults():
        from fleet.launchers.cluster import read_cluster
        from fleet.launchers.head import start_ray

        cluster, servers = read_cluster(file), list[Json]()
        here = host or cluster.head
        note(f"Ray {'is started' if start_ray(cluster, here) else 'runs already'} on {here}, log in {cluster.folder}")
        if here == cluster.head:
            servers = _drive(cluster, "up", file)
        if as_json:
            emit({"object": "list", "data": servers})


@app.command()
def down(file: File, host: OnHost = None, as_json: AsJson = False) -> None:
    """End all servers of the file, and Ray on this machine. On another machine than that of Ray's head, only Ray.

    Example: roundhouse fleet ray down cluster.yaml
    """
    with translated_faults():
        from fleet.launchers.cluster import read_cluster
        from fleet.launchers.head import end_ray

        cluster, servers = read_cluster(file), list[Json]()
        here = host or cluster.head
        if here == cluster.head:
            servers = _drive(cluster, "down", file)
        note(f"Ray {'has ended' if end_ray(cluster) else 'was not running'} on {here}")
        if as_json:
            emit({"object": "list", "data": servers})


def _drive(cluster: "Cluster", command: str, file: Path) -> list[Json]:
    """Run the driver, a process of its own: no server and no command line is ever a part of Ray."""
    from fleet.launchers.head import has_head, ray_environment, ray_program

    ray_program()  # without it the driver would end with a traceback
    if not has_head(cluster):
        raise RefusedError(
            f"Ray does not run on {cluster.head}. Start it with `roundhouse fleet ray up`, which takes over the "
            "servers that run."
        )
    words = [sys.executable, "-P", "-m", "fleet.launchers.driver", command, str(file.absolute())]
    done = subprocess.run(words, cwd=PACKAGES, env=ray_environment(cluster), stdout=subprocess.PIPE, text=True)
    servers: list[Json] = [json.loads(line) for line in done.stdout.splitlines()]
    for server in servers:
        state = "has ended" if command == "down" else f"runs as {server['pid']}" if server["pid"] else "has no machine"
        note(f"{server['name']} {state} on {server['host']}")
    if done.returncode:
        raise RefusedError(
            "Not all servers were reached. Is `roundhouse fleet ray up --host` done on each machine, and does Ray run "
            "on this one?"
        )
    return servers
