"""`roundhouse fleet`: the members of a fleet, and which of them get new requests."""

from typing import Annotated

import typer

from runtime.cli.commands.fleet import authority, ray
from runtime.cli.commands.fleet.importing import import_state
from runtime.cli.commands.fleet.simulate import simulate
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import pairs, size, table
from runtime.cli.remote.client import Json, part
from runtime.cli.remote.resource import print_answer

Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node.", show_default=False)]
app = typer.Typer(help="Several servers as one.", no_args_is_help=True)
app.add_typer(authority.app, name="ca")
app.add_typer(ray.app, name="ray")
app.command()(simulate)
app.command("import")(import_state)


@app.command()
def status(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the fleet as the server at the address sees it.

    Example: roundhouse fleet status --url http://front-1:8000
    """
    print_answer(url, as_json, _show_status, "GET", "/v1/fleet")


def _show_status(fleet: Json) -> None:
    ignored = ", ".join(f"{count} {reason}" for reason, count in fleet["ignored_reports"].items())
    pairs(
        [
            ("fleet", fleet["name"]),
            ("this server", f"{fleet['server']}, a {fleet['role']}"),
            (
                "joined",
                "yes"
                if fleet["is_joined"]
                else "no, because its database does not answer, or another server has its name",
            ),
            ("servers", f"nodes: {fleet['nodes']}, fronts: {fleet['fronts']}"),
            (
                "certificate ends",
                f"{ends} UTC" if (ends := fleet["certificate_ends"]) else "none, because the fleet uses a key",
            ),
            ("epoch", f"{fleet['epoch']}{'' if fleet['is_followed'] else ', not followed because it is older'}"),
            ("clocks", _clocks(fleet["members"])),
            ("ignored reports", ignored or "none"),
            ("dropped headers", str(fleet["dropped_headers"])),
        ]
    )


def _clocks(members: list[Json]) -> str:
    """Describe the servers whose clocks are wrong."""
    off = []
    for one in members:
        if one.get("is_clock_off"):
            seconds = one["clock_offset_seconds"]
            off.append(f"{one['name']} is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the database")
    return f"{'; '.join(off)}. Correct them." if off else "agree with the database"


@app.command()
def nodes(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the servers of the fleet with their memory and loaded models.

    Example: roundhouse fleet nodes
    """
    print_answer(url, as_json, _show_nodes, "GET", "/v1/fleet")


def _show_nodes(fleet: Json) -> None:
    rows = []
    for member in fleet["members"]:
        devices = member["devices"]
        used, budget = (sum(device[f"{kind}_bytes"] for device in devices) for kind in ("used", "budget"))
        age = member["report_seconds"]
        rows.append(
            [
                member["name"],
                member["role"],
                member["state"],
                "-" if age is None else f"{age:.1f} s",
                f"{size(used)} of {size(budget)}" if devices else "-",
                ", ".join(model["model"] for model in member["models"] if model["ready"]) or "-",
                str(sum(model["running"] for model in member["models"])),
                str(sum(model["waiting"] for model in member["models"])),
            ]
        )
    table(["NAME", "ROLE", "STATE", "REPORT", "MEMORY", "MODELS", "RUNNING", "WAITING"], rows, ["RUNNING", "WAITING"])


@app.command()
def drain(
    node: Node,
    force: Annotated[
        bool, typer.Option("--force", help="Even if it is the last node, or the last one with a pinned model.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Stop sending new requests of the fleet to a node. Running requests continue.

    Example: roundhouse fleet drain node-1
    """
    print_answer(url, as_json, _show_nodes, "POST", f"/v1/fleet/nodes/{part(node)}/drain", force=force or None)


@app.command()
def undrain(node: Node, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Send requests of the fleet to a node again.

    Example: roundhouse fleet undrain node-1
    """
    print_answer(url, as_json, _show_nodes, "POST", f"/v1/fleet/nodes/{part(node)}/undrain")


@app.command()
def plan(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show which node should hold which model, and what would change now.

    Example: roundhouse fleet plan
    """
    print_answer(url, as_json, _show_plan, "GET", "/v1/fleet/plan")


def _show_plan(plan: Json) -> None:
    rows = []
    for one in plan["models"]:
        is_by_hand = one["replicas"] is not None or one["on"]
        by_hand = " ".join(
            filter(None, ["" if one["replicas"] is None else str(one["replicas"]), ", ".join(one["on"])])
        )
        rows.append(
            [
                one["model"],
                ", ".join(one["nodes"]) or "-",
                ", ".join(one["ready"]) or "-",
                size(one["bytes"]),
                f"{one['demand']:.2f}",
                by_hand if is_by_hand else "-",
                " ".join(filter(None, [one["unplaced"], *(f"{node}: {why}" for node, why in one["problems"].items())])),
            ]
        )
    table(["MODEL", "NODES", "READY", "BYTES", "DEMAND", "BY HAND", "WHY NOT"], rows, ["BYTES", "DEMAND"])
    for move in plan["moves"]:
        print(f"now: {move['action']} {move['model']} on {move['node']} ({move['why']})")
    if not plan["is_followed"]:
        print("No plan is followed, because the fleet's database is older than what this server has seen.")


@app.command()
def place(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Id of a model.", show_default=False)],
    replicas: Annotated[
        int | None, typer.Option(min=0, help="Number of replicas.", show_default="one on each named node")
    ] = None,
    on: Annotated[list[str] | None, typer.Option(metavar="NODE", help="A node; repeat it for several.")] = None,
    release: Annotated[bool, typer.Option("--release", help="Let the fleet place the model again.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Place a model by hand. Other models may be evicted for it, except those placed by hand.

    Example: roundhouse fleet place starter-chat --replicas 2 --on node-1
    """
    path = f"/v1/fleet/placements/{part(model)}"
    if release:
        print_answer(url, as_json, _show_plan, "DELETE", path)
    else:
        print_answer(url, as_json, _show_plan, "PUT", path, {"replicas": replicas, "on": on or []})


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model or adapter.", show_default=False)],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show which node a request would go to now, and why.

    Example: roundhouse fleet explain starter-chat
    """
    print_answer(url, as_json, _show_choice, "GET", f"/v1/fleet/explain/{part(name)}")


def _show_choice(choice: Json) -> None:
    pairs(
        [
            ("model", f"{choice['model']}, revision {choice['revision']}"),
            ("adapter", choice["adapter"] or "none"),
            ("nodes that have it", ", ".join(choice["nodes"]) or "none"),
            ("goes to", ", then ".join(choice["tries"]) or "the first of them that can load it"),
            ("because", choice["reason"]),
        ]
    )
    rows = [
        [one["node"], f"{one['start_seconds']:.3f}", f"{one['adapter_seconds']:.3f}", f"{one['work']:g}"]
        for one in choice["candidates"]
    ]
    if rows:
        table(["NODE", "START s", "ADAPTER s", "WORK"], rows, ["START s", "ADAPTER s", "WORK"])


@app.command()
def signal(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show how many nodes and replicas the current load needs.

    Example: roundhouse fleet signal --json
    """
    print_answer(url, as_json, _show_signal, "GET", "/v1/fleet/signal")


def _show_signal(signal: Json) -> None:
    print(f"nodes: {signal['nodes']}, needed: {signal['needed_nodes']}")
    rows = [[one["model"], str(one["ready"]), f"{one['demand']:.2f}", str(one["needed"])] for one in signal["models"]]
    table(["MODEL", "READY", "DEMAND", "NEEDED"], rows, ["READY", "DEMAND", "NEEDED"])
