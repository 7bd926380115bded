"""Options that many commands share."""

import os
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = f"http://127.0.0.1:{os.environ.get('ROUNDHOUSE_PORT') or 8000}"
"""The server that `roundhouse serve` starts with this environment."""
URL = "ROUNDHOUSE_URL"


def _remember_json(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.meta["json"] = True  # so that errors are printed as JSON, too
    return value


Url = Annotated[str, typer.Option("--url", envvar=URL, help="Address of the server.", rich_help_panel="Common options")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=_remember_json,
        is_eager=True,
        help="Print the server's JSON on standard output, and nothing else there.",
        rich_help_panel="Common options",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Do it even if it is pinned.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Id or alias of a model.", show_default=False)]
AdapterName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of an adapter, or BASE:NAME, or TEAM/NAME.", show_default=False)
]

AliasName = Annotated[str, typer.Argument(help="The alias, as in NAME@ALIAS.", show_default=False)]
AliasVersion = Annotated[str | None, typer.Argument(help="v3 or sha256:...", show_default="the current version")]
AliasRemoval = Annotated[bool, typer.Option("--remove", help="Remove the alias.")]
NewAlias = Annotated[str | None, typer.Option("--alias", help="Also point this alias at the new version.")]
EvenInUse = Annotated[bool, typer.Option("--force", help="Remove it even if it is in use.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write.", show_default="standard output")]
EarlierVersion = Annotated[str | None, typer.Argument(help="v3 or sha256:...", show_default="the previous version")]


def root() -> Path:
    """Return the checkout that contains this package (it is installed editable)."""
    return Path(__file__).resolve().parents[2]
