"""`roundhouse fleet import`: move a server's adapters, routers, aliases and added models into its fleet."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.failures import UsageError, refusals
from runtime.cli.local.keys import Database, DataDir
from runtime.cli.options import AsJson
from runtime.cli.output import emit, note

if TYPE_CHECKING:
    from registry.state.shared.recipes import SharedRecipe


def import_state(
    fleet: Annotated[str, typer.Option("--fleet", envvar="ROUNDHOUSE_FLEET", help="Name of the fleet.")],
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Import the names of a server's own state into the fleet: adapters, routers, aliases and added models.

    Imports all of them, or none if the fleet already uses one of them for something else. Files follow once the server
    is a node of the fleet with this data directory; weights in a folder do not. The server's own state stays unchanged
    but is no longer used.

    Example: roundhouse fleet import --fleet models --data-dir /var/lib/roundhouse/data
    """
    from fleet.membership.members import schema_of
    from registry.state.database import is_remote, look
    from registry.state.shared.importing import import_names
    from registry.state.shared.opening import open_shared
    from runtime.cli.local.options import settings_of

    settings = settings_of(data_dir=data_dir, database=database, fleet=fleet)
    folder, url = settings.data_dir, settings.database
    if url is None or not is_remote(url):
        raise UsageError("Name the fleet's PostgreSQL: --database postgresql+psycopg://user@host/name.")
    with refusals(), closing(look(folder, _own_url(folder, url))) as own:
        recipes = _recipes(folder / "recipes")
        tables = open_shared(url, schema_of(fleet))
        with closing(tables.database):
            taken = import_names(own, tables, recipes)
    if as_json:
        emit({"object": "fleet.import", "fleet": fleet, "data_dir": str(folder), "taken": taken})
        return
    for words in taken:
        print(words)
    note(
        f"The fleet now has {len(taken)} names from {folder}."
        if taken
        else f"The fleet already has all names from {folder}."
    )


def _recipes(folder: Path) -> "list[SharedRecipe]":
    """Read the recipes added at run time. Raises Unfit for a broken file."""
    from launch.recipe_store import RecipeFiles, recipe_text
    from registry.errors import Unfit
    from registry.state.shared.recipes import SharedRecipe

    store = RecipeFiles(folder)
    stored = store.read()
    if stored.faults:
        raise Unfit(f"{stored.faults[0]}. Correct or delete that file, then import again.", code="bad_recipe")
    return [
        SharedRecipe.of(recipe, store.text(recipe.id, recipe.version) or recipe_text(recipe))
        for recipe in stored.recipes
    ]


def _own_url(folder: Path, url: str) -> str | None:
    """Return the URL of the server's own state: this PostgreSQL if it has ever used one, otherwise None."""
    from registry.state.database import REMOTE_MARK

    return url if (folder / REMOTE_MARK).is_file() else None
