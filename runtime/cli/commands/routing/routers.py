"""`roundhouse routers add`, list, show, alias, rollback, remove."""

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.commands.routing import evaluation, fit
from runtime.cli.failures import RefusedError
from runtime.cli.local.options import read_yaml
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import pairs, short, table
from runtime.cli.output import show as show_answer
from runtime.cli.remote.client import Client, Json
from runtime.cli.remote.resource import Resource, version_lines

app = typer.Typer(no_args_is_help=True, help="Send requests to models by rules, intents, complexity and cost.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The router's name.", show_default=False)]


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List routers with their version, targets and what is fitted.

    Example: roundhouse routers list
    """
    ROUTERS.list(url, as_json, _print_list)


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="A YAML file with `kind: router`.", show_default=False)],
    alias: Annotated[str | None, typer.Option(help="Also point this alias at the new version.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a router, or a new version of one, while the server runs. What was fitted before is kept.

    Example: roundhouse routers add support.yaml --alias prod
    """
    try:
        body = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RefusedError) as error:
        raise RefusedError(f"{file} cannot be read: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError(f"{file} holds no router: write one document with `id` and `targets`.")
    with Client(url) as client:
        result = client.call("POST", "/v1/routers", json=body, params={"alias": alias} if alias else {})
    show_answer(result, as_json, _print_added)


@app.command()
def show(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a router: its versions, aliases and definition.

    Example: roundhouse routers show auto
    """
    ROUTERS.show(url, as_json, name)


@app.command()
def alias(
    name: Name,
    alias: Annotated[str, typer.Argument(help="The alias, as in NAME@ALIAS.", show_default=False)],
    version: Annotated[str | None, typer.Argument(help="v3 or sha256:...; none: the current one.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the alias away.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Point an alias at a version, at once for all new requests.

    Example: roundhouse routers alias auto prod v3; then use the model auto@prod
    """
    ROUTERS.set_alias(url, as_json, name, alias, version, remove=remove)


@app.command()
def rollback(
    name: Name,
    version: Annotated[
        str | None, typer.Argument(help="v3 or sha256:...; none: the one before the current one.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make an earlier version the current one.

    Example: roundhouse routers rollback auto
    """
    ROUTERS.roll_back(url, as_json, name, version)


@app.command()
def remove(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Also while aliases point to it.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Remove a router with all its versions.

    Example: roundhouse routers remove support
    """
    ROUTERS.call(
        url, as_json, "DELETE", name, display=lambda removed: print(f"{removed['name']}: removed"), force=force or None
    )


app.command()(fit.fit)
app.command()(evaluation.explain)
app.command("eval")(evaluation.evaluate)
app.command()(evaluation.report)


# --- what is printed -------------------------------------------------------------------------------------------------
def _print_list(result: Json) -> None:
    rows = [
        [r["name"], r["version"], str(len(r["definition"]["targets"])), ", ".join(r["models"]) or "-",
         r["definition"].get("description", "")]
        for r in result["data"]
    ]  # fmt: skip
    table(["NAME", "VERSION", "TARGETS", "FITTED", "DESCRIPTION"], rows, right=["TARGETS"])


def _print_added(added: Json) -> None:
    word = "added" if added["new"] else "unchanged"
    print(f"{added['name']}: {word}, {added['version']} {short(added['digest'])}")
    print(f'Use it: roundhouse chat --model {added["name"]} "..."')


def _print_router(router: Json) -> None:
    definition = router["definition"]
    pairs(
        [
            ("router", router["name"]),
            ("version", f"{router['version']} {router['digest']}"),
            ("fitted", ", ".join(router["models"]) or "nothing"),
            ("targets", ", ".join(target["name"] for target in definition["targets"])),
            ("default", definition.get("default", "by state and price")),
            ("fallbacks", ", ".join(definition.get("fallbacks", [])) or "none"),
            ("rules", ", ".join(rule["name"] for rule in definition.get("rules", [])) or "none"),
        ]
    )
    print("\n".join(version_lines(router)))


ROUTERS = Resource("/v1/routers", _print_router)
