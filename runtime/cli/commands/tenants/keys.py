"""`roundhouse keys`: create, list, rotate and revoke keys."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.failures import UsageError
from runtime.cli.local.keys import Database, DataDir, open_keys, seconds
from runtime.cli.options import AsJson
from runtime.cli.output import ago, emit, note, table

if TYPE_CHECKING:
    from tenants.caller import Scope, ServiceClass
    from tenants.keys.records import Key

app = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke the keys of clients.")
Id = Annotated[
    str, typer.Argument(metavar="KEY", help="Id of a key: the 8 characters after 'rh-'.", show_default=False)
]
Patterns = list[str] | None


@app.command("list")
def list_(
    team: Annotated[str | None, typer.Option("--team", help="Only this team's keys.", show_default="all")] = None,
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List keys without their values, which are shown only once, when they are created.

    Example: roundhouse keys list --team search
    """
    with open_keys(data_dir, database) as tables:
        keys = tables.list_keys(team)
    if as_json:
        emit({"object": "list", "data": [_as_dict(key) for key in keys]})
        return
    now = time.time()
    columns = ["KEY", "TEAM", "NAME", "SCOPES", "MODELS", "ADAPTERS", "STATE", "EXPIRES", "MADE"]
    table(columns, [[*_words(key), key.state(now), _when(key.expires), ago(key.created)] for key in keys])


@app.command()
def create(
    team: Annotated[str, typer.Option("--team", help="Team of the key; see roundhouse teams list.")] = "default",
    name: Annotated[str, typer.Option("--name", help="Display name, such as its purpose.")] = "",
    scopes: Annotated[
        str,
        typer.Option("--scopes", help="Comma-separated scopes: infer, adapters, paths, models, usage, admin; or all."),
    ] = "infer",
    models: Annotated[
        Patterns, typer.Option("--models", help="Models it may use, such as 'starter-*'; repeat it for several.")
    ] = None,
    adapters: Annotated[
        Patterns,
        typer.Option("--adapters", help="Adapters it may use, such as 'sql-*' or 'base:*'; repeat it for several."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="Time until the key expires: 90d, 12h, 30m.", show_default="never")
    ] = None,
    service_class: Annotated[
        str | None,
        typer.Option(
            "--class",
            help="Class of requests that do not name one: critical, interactive or batch.",
            show_default="interactive",
        ),
    ] = None,
    ceiling: Annotated[
        str | None,
        typer.Option("--ceiling", help="The highest class it may request.", show_default="interactive"),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", help="Deadline of requests that do not name one: 30s, 5m.", show_default="none"),
    ] = None,
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it. It is shown only now, because only an HMAC of it is stored.

    Within a second after the first key, the server requires a key of everyone.

    Examples: roundhouse keys create --team search --name "nightly index" --models starter-embed --expires 90d;
    roundhouse keys create --team reports --class batch --ceiling batch;
    export ROUNDHOUSE_API_KEY=$(roundhouse keys create --scopes all)
    """
    from tenants.caller import EVERY
    from tenants.keys.records import KeyRequest

    left = None if expires is None else seconds(expires, "--expires")
    limit = None if timeout is None else seconds(timeout, "--timeout")
    allowed = _scopes(scopes)
    with open_keys(data_dir, database, make=True) as tables:
        request = KeyRequest(
            team,
            name,
            allowed,
            tuple(models or EVERY),
            tuple(adapters or EVERY),
            left,
            _class(service_class, "--class"),
            _class(ceiling, "--ceiling"),
            limit,
        )
        key, text = tables.create(request)
    _print_key(key, text, as_json)


@app.command()
def rotate(
    key: Id,
    grace: Annotated[str, typer.Option("--grace", help="How long the old key stays valid: 7d, 12h, 0s.")] = "1d",
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Create a successor with the same permissions and print it. The old key stays valid for a while.

    Example: roundhouse keys rotate Ab3dE6gH --grace 7d
    """
    left = seconds(grace, "--grace")
    with open_keys(data_dir, database) as tables:
        made, text = tables.rotate(key, left)
    note(f"{key} stays valid for {grace}, unless it expires earlier." if left else f"{key} is refused from now on.")
    _print_key(made, text, as_json)


@app.command()
def revoke(key: Id, data_dir: DataDir = None, database: Database = None, as_json: AsJson = False) -> None:
    """Revoke a key permanently, within a second. Its running requests continue.

    Example: roundhouse keys revoke Ab3dE6gH
    """
    with open_keys(data_dir, database) as tables:
        result = tables.revoke(key)
    if as_json:
        emit(_as_dict(result))
    else:
        print(f"{result.id}: revoked")


def _scopes(text: str) -> frozenset["Scope"]:
    from tenants.caller import SCOPES, Scope

    if text == "all":
        return SCOPES
    try:
        return frozenset(Scope(word.strip()) for word in text.split(","))
    except ValueError:
        raise UsageError(f"--scopes: write some of {', '.join(Scope)}, separated by commas, or all.") from None


def _class(text: str | None, option: str) -> "ServiceClass | None":
    from tenants.caller import CLASSES, ServiceClass

    if text is None:
        return None
    if text not in CLASSES:
        raise UsageError(f"{option} must be one of {', '.join(CLASSES)}.")
    return ServiceClass.of(text)


def _print_key(key: "Key", text: str, as_json: bool) -> None:
    """Print only the key on standard output, so that a shell can capture it."""
    if as_json:
        emit({**_as_dict(key), "value": text})
        return
    note(f"key {key.id} of team {key.team}: {', '.join(sorted(key.scopes))}. Store it; it is not shown again.")
    print(text)


def _as_dict(key: "Key") -> dict[str, Any]:
    return {
        "object": "key", "id": key.id, "team": key.team, "name": key.name, "scopes": sorted(key.scopes),
        "models": list(key.models), "adapters": list(key.adapters), "state": key.state(time.time()),
        "created": key.created, "expires": key.expires, "revoked": key.revoked, "replaces": key.replaces,
        "service_class": key.classes[0].label, "ceiling": key.classes[1].label, "timeout": key.timeout,
    }  # fmt: skip


def _words(key: "Key") -> Sequence[str]:
    return (key.id, key.team, key.name or "-", *(",".join(v) for v in (sorted(key.scopes), key.models, key.adapters)))


def _when(moment: float | None) -> str:
    return "never" if moment is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
