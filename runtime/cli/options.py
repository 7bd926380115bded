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
        ctx.meta["json"] = True  # so that an error is told in JSON too
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
Force = Annotated[bool, typer.Option("--force", help="Also if it is pinned; to remove: if it has adapters, too.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Id or alias of a model.", show_default=False)]
AdapterName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of an adapter, or BASE:NAME, or TEAM/NAME.", show_default=False)
]

AliasName = Annotated[str, typer.Argument(help="The alias, as in NAME@ALIAS.", show_default=False)]
AliasVersion = Annotated[str | None, typer.Argument(help="v3 or sha256:...; none: the current one.")]
AliasRemoval = Annotated[bool, typer.Option("--remove", help="Take the alias away.")]
EarlierVersion = Annotated[str | None, typer.Argument(help="v3 or sha256:...; none: the one before the current one.")]


def root() -> Path:
    """The checkout that this package lies in (it is installed editable)."""
    return Path(__file__).resolve().parents[2]
