"""`roundhouse limits`: limits of teams and keys."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.failures import UsageError
from runtime.cli.local.keys import Database, DataDir, open_database
from runtime.cli.options import AsJson
from runtime.cli.output import emit, note, table

if TYPE_CHECKING:
    from tenants.limits.records import Limit

app = typer.Typer(no_args_is_help=True, help="Set, list, try out and remove limits of teams and keys.")
KINDS = (
    "requests_per_minute, tokens_per_minute, audio_seconds_per_minute, requests_at_once, spend_per_day, "
    "spend_per_month, adapters_stored, adapter_bytes_stored, batch_tokens_queued"
)
Kind = Annotated[str, typer.Argument(metavar="KIND", help=f"One of {KINDS}.", show_default=False)]
Amount = Annotated[
    str, typer.Argument(metavar="AMOUNT", help="The limit: a number; money as 12.50.", show_default=False)
]
Team = Annotated[str | None, typer.Option("--team", help="Id of the limited team.", show_default=False)]
Key = Annotated[str | None, typer.Option("--key", help="Id of the limited key.", show_default=False)]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="Count only requests to this model, given by its id, not by an alias or adapter.",
        show_default="all models together",
    ),
]
Begin = Annotated[str | None, typer.Option("--from", help="A day in UTC, or seconds since the epoch.")]
End = Annotated[str | None, typer.Option("--to", help="Exclusive end of the period, in the format of --from.")]


@app.command("set")
def set_(
    kind: Kind,
    amount: Amount,
    team: Team = None,
    key: Key = None,
    model: Model = "",
    mode: Annotated[
        str, typer.Option("--mode", help="enforce: refuse; warn: add a header; shadow: only count.")
    ] = "enforce",
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Set a limit, replacing one of the same kind and model. A running server follows within a second.

    A warn limit only replaces another warn limit; a shadow limit replaces an enforced one.

    Examples: roundhouse limits set tokens_per_minute 60000 --team search;
    roundhouse limits set spend_per_month 250 --team search --mode warn;
    roundhouse limits set requests_at_once 4 --key Ab3dE6gH --mode shadow
    """
    with open_database(data_dir, database) as tables:
        from tenants.limits.table import LimitTable

        limits = LimitTable(tables)
        result = limits.set(_limit_of(kind, amount, team, key, model, mode))
        if not limits.check_model(model):
            note(f"No request to '{model}' was counted in the last week. Only a model's id counts, not an alias.")
    if as_json:
        emit(_as_dict(result))
    else:
        _print_limits([result])


@app.command("list")
def list_(
    team: Team = None,
    key: Key = None,
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List limits.

    Example: roundhouse limits list --team search
    """
    if team and key:
        raise UsageError("Name a team or a key, not both.")
    owner, subject = ("team", team) if team else ("key", key) if key else (None, None)
    with open_database(data_dir, database) as tables:
        from tenants.limits.table import LimitTable

        limits = LimitTable(tables)
        if owner is not None and subject is not None:
            limits.check(owner, subject)
        result = limits.all(owner, subject)
    if as_json:
        emit({"object": "list", "data": [_as_dict(one) for one in result]})
    else:
        _print_limits(result)


@app.command()
def remove(
    limit: Annotated[str, typer.Argument(metavar="LIMIT", help="Id of a limit; see roundhouse limits list.")],
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Remove a limit. A running server follows within a second.

    Example: roundhouse limits remove lim_0123456789abcdef
    """
    with open_database(data_dir, database) as tables:
        from tenants.limits.table import LimitTable

        result = LimitTable(tables).remove(limit)
    if as_json:
        emit(_as_dict(result))
    else:
        print(f"{result.id}: removed ({result.words})")


@app.command()
def simulate(
    kind: Kind,
    amount: Amount,
    team: Team = None,
    key: Key = None,
    model: Model = "",
    begin: Begin = None,
    end: End = None,
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Replay the ledger's last 7 days against a limit that is not set yet.

    Example: roundhouse limits simulate tokens_per_minute 60000 --team search --from 2026-11-16
    """
    limit = _limit_of(kind, amount, team, key, model, "enforce")
    with open_database(data_dir, database) as tables:
        from registry.base.wording import plain
        from tenants.ledger.report import moment_of
        from tenants.limits.simulate import simulate
        from tenants.limits.table import LimitTable

        now = time.time()
        first = now - 7 * 86_400 if begin is None else moment_of(begin, "from")
        last = now if end is None else moment_of(end, "to")
        if last <= first:
            raise UsageError("--from must be in the past." if end is None else "--to must be after --from.")
        limits = LimitTable(tables)
        limits.check_model(model)
        result = simulate(tables, limit, limits.zone(limit), first, last)
    if as_json:
        times = {"first_refused": result.first, "last_refused": result.last}
        emit({"object": "simulation", "requests": result.requests, "refused": result.refused, **times})
        return
    refused = f"would have refused {result.refused:,} of {result.requests:,} requests"
    print(f"{limit.words} of {plain(limit.display_amount)} {refused}")
    if result.first is not None and result.last is not None:
        print(f"from {_time(result.first)} to {_time(result.last)}")


LITELLM = {
    "rpm": "requests_per_minute",
    "rpm_limit": "requests_per_minute",
    "tpm": "tokens_per_minute",
    "tpm_limit": "tokens_per_minute",
    "max_parallel_requests": "requests_at_once",
    "max_budget": "spend_per_day or spend_per_month",
}
"""LiteLLM's words, and ours."""


def _limit_of(kind: str, amount: str, team: str | None, key: str | None, model: str, mode: str) -> "Limit":
    """Build a limit from the options. Raises UsageError."""
    from registry.errors import BadRequest
    from tenants.limits.records import Kind as Kinds
    from tenants.limits.records import Limit, Mode, amount_of

    if (team is None) == (key is None):
        raise UsageError("Name the owner of the limit: --team or --key.")
    try:
        known, how = Kinds(kind.replace("-", "_")), Mode(mode)
    except ValueError:
        if other := LITELLM.get(kind.replace("-", "_")):
            raise UsageError(f"There is no limit {kind}. Write {other}.") from None
        raise UsageError(f"KIND must be one of {KINDS}; --mode must be enforce, warn or shadow.") from None
    try:
        return Limit("", "team" if team else "key", team or key or "", known, amount_of(known, amount), how, model)
    except BadRequest as error:
        raise UsageError(error.message) from None


def _as_dict(limit: "Limit") -> dict[str, Any]:
    return {
        "object": "limit", "id": limit.id, "owner": limit.owner, "subject": limit.subject, "kind": limit.kind.value,
        "amount": limit.display_amount, "mode": limit.mode.value, "model": limit.model or None,
    }  # fmt: skip


def _print_limits(limits: "list[Limit]") -> None:
    from registry.base.wording import plain

    rows = [
        [
            one.id,
            f"{one.owner} {one.subject}",
            one.kind.value,
            plain(one.display_amount, ",.6f"),
            one.mode,
            one.model or "all",
        ]
        for one in limits
    ]
    table(["LIMIT", "WHOSE", "KIND", "AMOUNT", "MODE", "MODEL"], rows, right=["AMOUNT"])


def _time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment))
