"""`roundhouse teams`: teams that share a server."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.failures import RefusedError, UsageError
from runtime.cli.local.keys import Database, DataDir, open_keys, open_keys_and_limits
from runtime.cli.options import AsJson
from runtime.cli.output import ago, emit, table

if TYPE_CHECKING:
    from tenants.keys.records import Team

app = typer.Typer(no_args_is_help=True, help="List, create, edit, declare and archive the teams that share a server.")
WEIGHT = "Its share of a contended model in tokens: weight 2 gets twice as much as weight 1."
Id = Annotated[str, typer.Argument(metavar="TEAM", help="Id of a team: a-z, 0-9, '-' and '_'.", show_default=False)]

TEXTS = "Keep the texts of its last requests and answers in memory, for the console's page Requests."
HOURS = "Store its Responses for this many hours; 0 deletes them and stores none, or for team default as `serve` says."
ZONE = "Time zone of the days and months of its budgets, such as Europe/Berlin."


@app.command("list")
def list_(data_dir: DataDir = None, database: Database = None, as_json: AsJson = False) -> None:
    """List all teams with the number of their active keys.

    Example: roundhouse teams list
    """
    import time

    now = time.time()
    with open_keys(data_dir, database) as tables:
        teams, keys = tables.list_teams(), tables.list_keys()
    active = [key.team for key in keys if key.state(now) == "active"]
    if as_json:
        emit({"object": "list", "data": [{**asdict(team), "active_keys": active.count(team.id)} for team in teams]})
        return
    rows = [[t.id, t.name, _state(t), f"{t.weight:g}", str(active.count(t.id)), ago(t.created)] for t in teams]
    table(["TEAM", "NAME", "STATE", "WEIGHT", "KEYS", "MADE"], rows, right=["WEIGHT", "KEYS"])


@app.command()
def create(
    team: Id,
    name: Annotated[str, typer.Option("--name", help="Display name.", show_default="the id")] = "",
    weight: Annotated[float, typer.Option("--weight", help=WEIGHT)] = 1.0,
    timezone: Annotated[str, typer.Option("--timezone", help=ZONE)] = "UTC",
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Create a team. Create its keys with `roundhouse keys create`.

    Example: roundhouse teams create search --name "Search and ranking" --weight 2
    """
    with open_keys(data_dir, database, make=True) as tables:
        _print_team(tables.create_team(team, name, weight, timezone), as_json)


@app.command()
def edit(
    team: Id,
    name: Annotated[str | None, typer.Option("--name", help="Display name.", show_default="unchanged")] = None,
    weight: Annotated[float | None, typer.Option("--weight", help=WEIGHT, show_default="unchanged")] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", help=ZONE, show_default="unchanged")] = None,
    store_texts: Annotated[
        bool | None, typer.Option("--store-texts/--no-store-texts", help=TEXTS, show_default="unchanged")
    ] = None,
    store_responses: Annotated[
        int | None, typer.Option("--store-responses", metavar="HOURS", help=HOURS, show_default="unchanged")
    ] = None,
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Change a team. A running server follows within a second, for new requests.

    Example: roundhouse teams edit search --weight 4
    """
    if name is None and weight is None and timezone is None and store_texts is None and store_responses is None:
        raise UsageError("Name what to change: --name, --weight, --timezone, --store-texts or --store-responses.")
    with open_keys(data_dir, database) as tables:
        changed = tables.edit_team(
            team,
            name=name,
            weight=weight,
            timezone=timezone,
            store_texts=store_texts,
            response_hours=store_responses,
        )
        _print_team(changed, as_json)


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML; see docs/teams.md.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Create and change teams and their limits as declared in a file. Repeating it changes nothing.

    Example: roundhouse teams apply teams.yaml --dry-run
    """
    try:
        text = file.read_bytes()
    except OSError as error:
        raise RefusedError(f"{file} cannot be read: {error.strerror}.") from None
    with open_keys_and_limits(data_dir, database, make=not dry_run) as (teams, limits):
        from tenants.declared import changes, read

        result = list(changes(read(text), teams, limits))
        for change in result if not dry_run else ():
            change.make()
    if as_json:
        emit({"object": "changes", "made": not dry_run, "data": [change.words for change in result]})
        return
    print("\n".join(change.words for change in result) or "nothing to change")


@app.command()
def archive(team: Id, data_dir: DataDir = None, database: Database = None, as_json: AsJson = False) -> None:
    """Refuse all keys of a team, within a second. Deletes only its stored responses.

    Example: roundhouse teams archive search
    """
    with open_keys(data_dir, database) as tables:
        _print_team(tables.archive(team, True), as_json)


@app.command()
def restore(team: Id, data_dir: DataDir = None, database: Database = None, as_json: AsJson = False) -> None:
    """Accept the keys of an archived team again.

    Example: roundhouse teams restore search
    """
    with open_keys(data_dir, database) as tables:
        _print_team(tables.archive(team, False), as_json)


def _print_team(team: "Team", as_json: bool) -> None:
    if as_json:
        emit({"object": "team", **asdict(team)})
    else:
        print(f"{team.id}: {_state(team)}")


def _state(team: "Team") -> str:
    return "archived" if team.archived else "active"
