"""`roundhouse fleet`: who belongs to it, and who gets new requests."""

from typing import Annotated

import typer

from runtime.cli.commands.fleet import authority
from runtime.cli.commands.fleet.simulate import simulate
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import pairs, show, size, table
from runtime.cli.remote.client import Client, Json, part

Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node.", show_default=False)]
app = typer.Typer(help="Several servers as one.", no_args_is_help=True)
app.add_typer(authority.app, name="ca")
app.command()(simulate)


@app.command()
def status(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the fleet as the server at the address sees it.

    Example: roundhouse fleet status --url http://front-1:8000
    """
    with Client(url) as client:
        show(client.get("/v1/fleet"), as_json, _show_status)


def _show_status(fleet: Json) -> None:
    ignored = ", ".join(f"{count} {reason}" for reason, count in fleet["ignored_reports"].items())
    pairs(
        [
            ("fleet", fleet["name"]),
            ("this server", f"{fleet['server']}, a {fleet['role']}"),
            ("joined", "yes" if fleet["is_joined"] else "no: its database does not answer"),
            ("servers", f"{fleet['nodes']} nodes, {fleet['fronts']} fronts"),
            ("certificate ends", f"{fleet['certificate_ends']} UTC"),
            ("ignored reports", ignored or "none"),
            ("dropped headers", str(fleet["dropped_headers"])),
        ]
    )


@app.command()
def nodes(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the servers of the fleet, their memory, and the models in it.

    Example: roundhouse fleet nodes
    """
    with Client(url) as client:
        show(client.get("/v1/fleet"), as_json, _show_nodes)


def _show_nodes(fleet: Json) -> None:
    rows = []
    for member in fleet["members"]:
        devices = member["devices"]
        used, budget = (sum(one[f"{kind}_bytes"] for one in devices) for kind in ("used", "budget"))
        age = member["report_seconds"]
        rows.append(
            [
                member["name"],
                member["role"],
                member["state"],
                "-" if age is None else f"{age:.1f} s",
                f"{size(used)} of {size(budget)}" if devices else "-",
                ", ".join(one["model"] for one in member["models"] if one["ready"]) or "-",
                str(sum(one["running"] for one in member["models"])),
                str(sum(one["waiting"] for one in member["models"])),
            ]
        )
    table(["NAME", "ROLE", "STATE", "REPORT", "MEMORY", "MODELS", "RUNNING", "WAITING"], rows, ["RUNNING", "WAITING"])


@app.command()
def drain(
    node: Node,
    force: Annotated[bool, typer.Option("--force", help="Also if it is the last node.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send a node no new requests of the fleet. Those that run there go on.

    Example: roundhouse fleet drain node-1
    """
    with Client(url) as client:
        show(client.post(f"/v1/fleet/nodes/{part(node)}/drain", force=force or None), as_json, _show_nodes)


@app.command()
def undrain(node: Node, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Send a node requests of the fleet again.

    Example: roundhouse fleet undrain node-1
    """
    with Client(url) as client:
        show(client.post(f"/v1/fleet/nodes/{part(node)}/undrain"), as_json, _show_nodes)
