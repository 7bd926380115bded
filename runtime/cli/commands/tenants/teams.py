"""`roundhouse teams`: who shares a server."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.local.keys import Database, DataDir, opened
from runtime.cli.options import AsJson
from runtime.cli.output import ago, emit, table

if TYPE_CHECKING:
    from tenants.keys.records import Team

app = typer.Typer(no_args_is_help=True, help="List, make and archive the teams that share a server.")
Id = Annotated[str, typer.Argument(metavar="TEAM", help="Id of a team: a-z, 0-9, '-' and '_'.", show_default=False)]


@app.command("list")
def list_(data_dir: DataDir = None, database: Database = None, as_json: AsJson = False) -> None:
    """List all teams with their keys that are active.

    Example: roundhouse teams list
    """
    import time

    now = time.time()
    with opened(data_dir, database) as tables:
        teams, keys = tables.list_teams(), tables.list_keys()
    active = [key.team for key in keys if key.state(now) == "active"]
    if as_json:
        emit({"object": "list", "data": [{**asdict(team), "active_keys": active.count(team.id)} for team in teams]})
        return
    rows = [
        [t.id, t.name, "archived" if t.archived else "active", str(active.count(t.id)), ago(t.created)] for t in teams
    ]
    table(["TEAM", "NAME", "STATE", "KEYS", "MADE"], rows, right=["KEYS"])


@app.command()
def create(
    team: Id,
    name: Annotated[str, typer.Option("--name", help="For people.", show_default="the id")] = "",
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Make a team. Its keys are made with `roundhouse keys create`.

    Example: roundhouse teams create search --name "Search and ranking"
    """
    with opened(data_dir, database, make=True) as tables:
        _told(tables.create_team(team, name), as_json)


@app.command()
def archive(team: Id, data_dir: DataDir = None, database: Database = None, as_json: AsJson = False) -> None:
    """Refuse all keys of a team, within a second. Nothing of it is deleted.

    Example: roundhouse teams archive search
    """
    with opened(data_dir, database) as tables:
        _told(tables.archive(team, True), as_json)


@app.command()
def restore(team: Id, data_dir: DataDir = None, database: Database = None, as_json: AsJson = False) -> None:
    """Take the keys of an archived team again.

    Example: roundhouse teams restore search
    """
    with opened(data_dir, database) as tables:
        _told(tables.archive(team, False), as_json)


def _told(team: "Team", as_json: bool) -> None:
    if as_json:
        emit({"object": "team", **asdict(team)})
    else:
        print(f"{team.id}: {'archived' if team.archived else 'active'}")
