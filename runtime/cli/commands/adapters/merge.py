"""`roundhouse adapters merge`: write a base and an adapter as one model folder."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.failures import Failure, RefusedError, ServerError, UsageError
from runtime.cli.options import DEFAULT_URL, AdapterName, AsJson, Url
from runtime.cli.output import ago, emit, note, short, show, size, table
from runtime.cli.remote.client import Client, Json, part
from runtime.cli.remote.progress import bar

if TYPE_CHECKING:
    from launch.recipe_store import RecipeStore
    from registry.catalog import ResolvedName
    from registry.state.database import State
    from runtime.config.settings import Settings


def merge(
    name: AdapterName,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A new or empty folder to write to without the server.", show_default=False
        ),
    ] = None,
    recipes: Annotated[list[Path] | None, typer.Option(help="As in `serve`; used with --output.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="As in `serve`; used with --output.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Write a base and an adapter as one model, which needs no adapter place.

    The server writes it into its data directory. With --output this command writes it itself, on the server's machine,
    whether or not the server is running. On a node of a fleet, set ROUNDHOUSE_FLEET and ROUNDHOUSE_DATABASE as for the
    server.

    Example: roundhouse adapters merge legal@prod
    """
    from registry.errors import RoundhouseError
    from runtime.cli.local.options import settings_of

    if output is None:
        _show(_ask(url, name, quiet=as_json), as_json)
        return
    settings = settings_of(recipes=tuple(recipes) if recipes else None, data_dir=data_dir)
    output = output.expanduser().absolute()
    try:
        target = _target(settings, name)
        result = _merged(settings, target, output, quiet=as_json)
    except RoundhouseError as error:
        kind: type[Failure] = RefusedError if error.status < 500 else ServerError
        raise kind(error.message, faults=getattr(error, "faults", ()), code=error.code) from None
    except OSError as error:
        raise RefusedError(f"{output} cannot be written: {error.strerror}.") from None
    _show(result, as_json)


def merged(
    remove: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete this one instead.", show_default=False)
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the models that the server merged for your team, or delete one that no model is served from.

    Example: roundhouse adapters merged
    """
    with Client(url) as client:
        if remove is None:
            show(client.call("GET", "/v1/merged"), as_json, _print_merged)
        else:
            show(client.call("DELETE", f"/v1/merged/{part(remove)}"), as_json, _print_deleted)


def _print_merged(result: Json) -> None:
    rows = [
        [one["name"], one["team"] or "", size(one["bytes"]), ago(one["created"]), ", ".join(one["models"])]
        for one in result["data"]
    ]
    table(["NAME", "TEAM", "SIZE", "MERGED", "SERVED AS"], rows, right=["SIZE"])


def _print_deleted(result: Json) -> None:
    print(f"{result['name']} deleted: {size(result['freed_bytes'])} freed")


def _ask(url: str, name: str, *, quiet: bool) -> Json:
    """Ask the server to merge it."""
    with Client(url) as client, bar(not quiet) as progress_bar:
        progress_bar.show(f"merging {name}", 0.0)
        return client.call("POST", f"/v1/adapters/{part(name)}/merge", timeout=None)


def _show(result: Json, as_json: bool) -> None:
    if as_json:
        emit(result)
        return
    print(
        f"{result['name']}@{result['version']} {short(str(result['digest']))} "
        f"and its base {result['base']}: in {result['output']}"
    )
    print(f"Serve it: roundhouse models add {result['output']}")


def _target(settings: "Settings", name: str) -> "ResolvedName":
    from launch.recipe_store import arrange
    from registry.catalog import Catalog
    from runtime.cli.commands.server.serve import read_recipes

    with _state(settings) as (state, added):
        models = arrange(read_recipes(settings).models, added.read().recipes).recipes
        catalog = Catalog(models, state.adapters.all(), state.models.aliases())
    target = catalog.resolve(name)
    if target.version is None:
        raise RefusedError(f"'{name}' is a model. Name the adapter to merge into it.")
    return target


@contextmanager
def _state(settings: "Settings") -> "Iterator[tuple[State, RecipeStore]]":
    """Open the names and added models of the server, or of its fleet."""
    from launch.recipe_store import RecipeFiles
    from registry.state.database import State, is_remote

    folder, url = settings.data_dir, settings.database
    if settings.fleet is None:
        with State(folder, url=url, read_only=True) as state:
            yield state, RecipeFiles(folder / "recipes")
        return
    from fleet.membership.members import schema_of
    from launch.shared_recipes import SharedRecipeStore
    from registry.state.shared.opening import open_shared

    if url is None or not is_remote(url):
        raise UsageError("Set the variable ROUNDHOUSE_DATABASE to the fleet's PostgreSQL.")
    shared = open_shared(url, schema_of(settings.fleet))
    with closing(shared.database), State(folder, url=url, read_only=True, shared=shared) as state:
        assert state.recipes is not None, "servers share them"
        yield state, SharedRecipeStore(state.recipes)


def _merged(settings: "Settings", target: "ResolvedName", output: Path, quiet: bool) -> Json:
    import asyncio

    from adapters.compose.model import check_room, merge_model, needs
    from adapters.store import Store
    from models.sources.resolve import resolve
    from registry.errors import Unavailable

    assert target.version is not None
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise RefusedError(f"{output} is not empty. Name a new folder.")
    base = resolve(target.recipe.source, Path.cwd(), download=False)
    adapter = Store(settings.data_dir / "store").check(target.version.digest)
    output.parent.mkdir(parents=True, exist_ok=True)
    space = needs(base)
    if not quiet:
        note(f"needs {space.words}")
    try:
        check_room(space, output.parent)
    except Unavailable as short:  # this machine lacks the room, and nothing was started
        raise RefusedError(short.message, code=short.code) from None
    trusted = target.recipe.engine.flags.get("trust_remote_code") is True
    with bar(not quiet) as progress_bar:
        done = merge_model(
            base,
            adapter,
            output,
            trusted=trusted,
            tell=lambda progress: progress_bar.show(progress.text, progress.fraction),
        )
        size_ = asyncio.run(done)
    version = target.version
    return {
        "object": "adapter.merged",
        "name": version.key.name,
        "base": version.key.base,
        "version": version.tag,
        "digest": version.digest,
        "output": str(output),
        "bytes": size_,
    }
