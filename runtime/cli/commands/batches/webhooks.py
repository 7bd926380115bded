"""`roundhouse webhooks`: URLs that receive the events of a team's batches, and the secrets that sign them."""

from typing import Annotated

import typer

from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import ago, pairs, table
from runtime.cli.remote.client import Json
from runtime.cli.remote.resource import Resource, print_answer

SECRET = "/v1/callback_secret"
EVENTS = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")
Id = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Id of a webhook.", show_default=False)]
KeepOld = Annotated[bool, typer.Option(help="Also sign with the old secret for 24 hours.")]
TeamId = Annotated[str | None, typer.Option("--team", help="Team of the secret.", show_default="the key's own")]
app = typer.Typer(help="Webhooks: URLs that are called when batches end.", no_args_is_help=True)


def _show(webhook: Json) -> None:
    rows = [
        ("webhook", webhook["id"]),
        ("name", webhook["name"]),
        ("url", webhook["url"]),
        ("events", ", ".join(webhook["event_types"])),
    ]
    if "signing_secret" in webhook:
        rows.append(("secret", webhook["signing_secret"]))
    pairs(rows)


WEBHOOKS = Resource("/v1/webhook_endpoints", _show)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Newest webhooks to list.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List webhooks, newest first.

    Example: roundhouse webhooks list
    """
    WEBHOOKS.list(url, as_json, _print_list, limit=limit)


def _print_list(result: Json) -> None:
    rows = [
        [one["id"], one["name"], one["url"], ", ".join(one["event_types"]), ago(one["created_at"])]
        for one in result["data"]
    ]
    table(["WEBHOOK", "NAME", "URL", "EVENTS", "CREATED"], rows)


@app.command()
def create(
    target: Annotated[str, typer.Argument(metavar="HTTPS_URL", help="URL that receives events.", show_default=False)],
    name: Annotated[str, typer.Option(help="Display name.")] = "batches",
    event: Annotated[
        list[str] | None,
        typer.Option(help="Event to send, such as batch.completed; repeat it for several. Default: all four."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a webhook. Its secret is shown only now and after a rotation.

    Example: roundhouse webhooks create https://example.com/batches
    """
    body = {"url": target, "name": name, "event_types": event or list(EVENTS)}
    WEBHOOKS.create(url, as_json, body)


@app.command()
def rotate(
    webhook: Id, team: TeamId = None, keep_old: KeepOld = True, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Give a webhook a new secret. The key needs the scope 'admin'.

    Example: roundhouse webhooks rotate webhook_1f2e
    """
    body = {"keep_old_secret_active_for_24_hours": keep_old}
    WEBHOOKS.call(url, as_json, "POST", webhook, "rotate_secret", body=body, team_id=team)


@app.command("test")
def send_test(
    webhook: Id,
    event: Annotated[str, typer.Option(help="Event to send.")] = EVENTS[0],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send a sample event now and show the status of the answer.

    Example: roundhouse webhooks test webhook_1f2e
    """
    WEBHOOKS.call(url, as_json, "POST", webhook, "test", display=_print_test, body={"event_type": event})


def _print_test(view: Json) -> None:
    print(f"{view['event_type']}: answered with status {view['status_code']}")


@app.command()
def delete(webhook: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a webhook. Waiting deliveries are not sent any more.

    Example: roundhouse webhooks delete webhook_1f2e
    """
    WEBHOOKS.call(url, as_json, "DELETE", webhook, display=lambda view: print(f"{view['id']}: deleted"))


@app.command()
def secret(
    rotate: Annotated[bool, typer.Option("--rotate", help="Create a new secret.")] = False,
    team: TeamId = None,
    keep_old: KeepOld = True,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show or rotate the secret that signs the `callback_url`s of a team's batches. The key needs the scope 'admin'.

    Example: roundhouse webhooks secret --rotate
    """
    body = {"keep_old_secret_active_for_24_hours": keep_old} if rotate else None
    method, path = ("POST", f"{SECRET}/rotate") if rotate else ("GET", SECRET)
    print_answer(url, as_json, lambda view: print(view["signing_secret"]), method, path, body, team_id=team)
