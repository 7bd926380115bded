"""`roundhouse models add`, edit, remove, export: change models while the server runs."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.cli.failures import RefusedError, ServerError, UsageError, refusals
from runtime.cli.local import ollama
from runtime.cli.local.options import read_yaml
from runtime.cli.options import DEFAULT_URL, AsJson, ModelName, Output, Url
from runtime.cli.output import emit, note, pairs, size, table
from runtime.cli.remote.client import Client, Json, part
from runtime.cli.remote.progress import POLL_SECONDS, Bar, bar
from runtime.cli.remote.resource import print_answer

SourceText = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A folder on the server's machine, ORG/NAME or ORG/NAME@REVISION on a hub, package:NAME/PATH, or "
        "ollama:NAME, which Ollama has pulled.",
        show_default=False,
    ),
]
OLLAMA_LINKS = Path("ollama-models")
"""Folder for links to Ollama's files. By default a server serves folders below its working directory."""
ANY_BUDGET = 1 << 40
"""A budget in bytes for any model, because only a server knows whether it fits."""
SET = "A value to set, such as {}; repeat it for several."
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET.format("memory.kv_cache=2GiB"))
]


def add(
    source: SourceText,
    id_: Annotated[
        str | None, typer.Option("--id", help="The model's id.", show_default="from the name of the source")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub's repository.")] = None,
    settings: Settings = None,
    requests: Annotated[int, typer.Option(min=1, help="Size the KV cache for this many concurrent requests.")] = 8,
    tokens: Annotated[int, typer.Option(min=16, help="Tokens of each of these requests.")] = 4096,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the proposal and change nothing.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a model without a restart: show the proposed recipe with reasons, ask for confirmation, and serve it.

    Examples: roundhouse models add ./support-merged;
    roundhouse models add Qwen/Qwen3-0.6B --id qwen --set context_length=8192;
    roundhouse models add package:models.starter/pack/starter-chat --id mine --yes;
    roundhouse models add ollama:llama3.2
    """
    overrides = {key: value for key, value in map(setting, settings or ()) if value is not None}
    if source.startswith(ollama.PREFIX):
        pulled = ollama.find(source.removeprefix(ollama.PREFIX).removeprefix("//"))  # the slashes are LocalAI's
        for text in pulled.notes:
            note(text)
        source, id_ = str(pulled.link(OLLAMA_LINKS)), id_ or pulled.name
        overrides = {**pulled.overrides, **overrides}
    body: Json = {"source": _source(source), "id": id_, "revision": revision, "requests": requests, "tokens": tokens}
    body["overrides"] = overrides
    with Client(url) as client:
        proposal = client.post("/v1/models", {**body, "dry_run": True})
        if dry_run:
            emit(proposal) if as_json else _propose(proposal)
            return
        if not as_json:
            _propose(proposal)
        if proposal["fit"] == "does_not_fit":
            raise RefusedError(proposal["advice"], code="insufficient_memory")
        if not yes:
            _ask(proposal["id"])
        added = client.post("/v1/models", {**body, "id": proposal["id"]})
        try:
            with bar(not as_json) as progress_bar:
                added["model"] = _arrive(client, added["id"], progress_bar)
        except KeyboardInterrupt:
            id_ = added["id"]
            note(f"\nThe server continues the download. `roundhouse models show {id_}` shows its progress,")
            note(f"`roundhouse models cancel {id_}` stops it and keeps what was downloaded.")
            raise
    if as_json:
        emit(added)
        return
    print(f"{added['id']}: {'added' if added['new'] else 'already present'}, the first request loads it")
    if added["model"]["task"] == "chat":
        print(f'Use it: roundhouse chat --model {added["id"]} "..."')


def check(
    folder: Annotated[Path, typer.Argument(help="A folder with a model's files, or a GGUF file.", show_default=False)],
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Check without a server whether a folder can be served: weights by name, tokenizer, chat template, modules.

    Loads nothing. If it cannot be served, lists every fault and what to do, with exit code 1.

    Example: roundhouse models check ./support-merged
    """
    import asyncio

    from launch.checks.checker import FileChecker
    from launch.conversion.gguf import conversion_note, describe, gguf_of, listing_of
    from launch.files.listing import list_folder
    from launch.proposal.draft import Machine
    from launch.proposal.propose import propose
    from launch.request import ModelRequest
    from registry.files.weights import read_weights
    from registry.recipes.fields import PathSource
    from runtime.cli.local.host import kind_of_host

    if folder.is_file():
        folder = _gguf(folder).parent
    if not folder.is_dir():
        raise RefusedError(f"There is no folder {folder}.", code="source_not_found")
    folder = folder.resolve()
    overrides = {key: value for key, value in map(setting, settings or ()) if value is not None}
    with refusals():
        request = ModelRequest(str(folder), overrides=overrides)
        machine = Machine(kind_of_host(), ANY_BUDGET)
        file = gguf_of(folder)
        listing = list_folder(folder) if file is None else listing_of(file, describe(file, quiet=True))
        proposal = propose(listing, PathSource(path=str(folder)), request, machine)
        if file is None:
            read_weights(folder)
            asyncio.run(FileChecker().check(proposal.recipe, folder))
    recipe, notes = proposal.recipe, [*proposal.notes, *([conversion_note(listing)] if file else [])]
    if as_json:
        task, engine = recipe.task.value, recipe.engine.name
        emit({"object": "model.check", "fit": True, "task": task, "engine": engine, "notes": notes})
        return
    print(f"{folder} can be served: {recipe.task.value} by {recipe.engine.name}.")
    for text in notes:
        print(f"- {text}")


def _ask(id_: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("There is no terminal to confirm on. Add --yes to continue, or --dry-run to only look.")
    if not typer.confirm(f"Add it as {id_}?", default=True, err=True):
        raise RefusedError("Nothing was added.")


def _source(text: str) -> str:
    """Return the source, with a local folder as an absolute path, because the server has another working directory."""
    if text.startswith("package:"):
        return text
    path = Path(text).expanduser()
    if path.is_file():
        return str(_gguf(path))
    return str(path.resolve()) if path.is_dir() or text.startswith(("/", "./", "../", "~")) else text


def _gguf(file: Path) -> Path:
    """Return the absolute path of a GGUF, which may be a link to a file of another name. Raises RefusedError."""
    path = file.parent.resolve() / file.name
    if path.suffix.lower() == ".gguf":
        return path
    with file.open("rb") as stream:
        is_gguf = stream.read(4) == b"GGUF"
    if is_gguf:
        raise RefusedError(
            f"{file} is a GGUF without the ending .gguf, as in Ollama's blobs. Add it by its name in Ollama, such as "
            f"ollama:llama3.2, or link it into a folder of its own: mkdir NAME && ln -s {path} NAME/NAME.gguf"
        )
    recipes = " What a Modelfile sets goes into a recipe: see docs/migrate.md." if file.name == "Modelfile" else ""
    raise RefusedError(f"{file} is a file. Give the model's folder, or a GGUF file.{recipes}")


def setting(text: str) -> tuple[str, Any]:
    """Parse KEY=VALUE with a YAML value; an empty value is None and stands for the default."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {text}: write KEY=VALUE, such as memory.kv_cache=2GiB.")
    try:
        return key, read_yaml(value)
    except RefusedError:
        return key, value


def _propose(result: Json) -> None:
    note(f"{result['id']}: {result['task']} by {result['engine']}")
    rows = [
        [choice["key"], choice["value"], choice["why"]]
        for choice in result["choices"]
        if choice["key"] not in ("id", "version")
    ]
    table(["KEY", "VALUE", "WHY"], rows)
    for text in result["notes"]:
        print(f"- {text}")
    plan = result["plan"]
    lines = [
        ("this machine", "it does not fit" if result["lacking_bytes"] else result["advice"]),
        ("needs", size(plan["bytes_needed"])),
    ]
    lines.append(("free", f"{size(plan['bytes_free'])} of {size(plan['budget_bytes'])}"))
    if result["lacking_bytes"]:
        lines.append(("lacks", size(result["lacking_bytes"])))
    if result["fetch_bytes"]:
        lines.append(("to fetch", size(result["fetch_bytes"])))
    pairs(lines)


def _arrive(client: Client, model: str, progress_bar: Bar) -> Json:
    """Wait until the server has the model's files. Raises the error of their download."""
    import time

    while True:
        result = client.get(f"/v1/models/{part(model)}")
        progress = result.get("progress")
        if result["state"] != "loading" or not progress or progress["phase"] not in ("fetching", "converting"):
            break
        progress_bar.show(f"{model}: {progress['phase']} {progress['detail']}", progress["percent"] / 100)
        time.sleep(POLL_SECONDS)
    if result["failure"] and result["state"] == "failed":
        raise ServerError(f"{model} was added but cannot be used: {result['failure']['message']}")
    return result


def edit(model: ModelName, settings: Settings = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Change values of a model's recipe. The new version takes effect once the model is not in use.

    The previous version stays available as MODEL@VERSION. An empty value restores the default.

    Example: roundhouse models edit my-chat --set memory.kv_cache=1GiB --set dtype=
    """
    changes = dict(map(setting, settings or ()))
    if not changes:
        raise UsageError(
            "Name what to change, such as --set memory.kv_cache=1GiB. `roundhouse models export` shows all values."
        )
    print_answer(url, as_json, _print_edited, "PATCH", f"/v1/models/{part(model)}", {"changes": changes})


def _print_edited(result: Json) -> None:
    if not result["changed"]:
        print(f"{result['id']}: unchanged")
        return
    when = "takes effect once the model is not in use" if result["waits"] else "is in effect"
    print(f"{result['id']}: version {result['version']} {when} ({', '.join(result['changed'])})")
    print(f"Version {result['before']} is available as {result['id']}@{result['before']}")


def remove(
    model: ModelName,
    force: Annotated[bool, typer.Option("--force", help="Do it even if it is pinned or has adapters.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="Also delete its files from a hub.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Remove a model that was added at run time, or one earlier version of it (MODEL@2). Running requests finish.

    Its files stay for later use. --purge deletes files that were downloaded or converted, unless another model uses
    them. Your own folders always stay.

    Example: roundhouse models remove my-chat --purge
    """
    with Client(url) as client:
        result = client.delete(f"/v1/models/{part(model)}", force=force or None, purge=purge or None)
    if as_json:
        emit(result)
        return
    freed = f", freed {size(result['freed_bytes'])} of disk space" if purge else ""
    print(f"{result['id']}: removed{freed}")
    if result["still"]:
        print(f"Version {result['still']} from the server's own files is served now")


def export(model: ModelName, output: Output = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Export a model's recipe as a YAML file for --recipes, with the reasons for its values.

    Example: roundhouse models export my-chat -o my-chat.yaml
    """
    with Client(url) as client:
        text = client.text("GET", f"/v1/models/{part(model)}/recipe")
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        emit({"id": model, "recipe": text})
    elif output is None:
        print(text, end="")
    else:
        note(f"wrote {output}")


def cancel(model: ModelName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Stop downloading a model's files. Keeps what was downloaded; the next request or load continues from there.

    Example: roundhouse models cancel qwen
    """

    def print_cancelled(result: Json) -> None:
        print(f"{result['id']}: no download is running now")  # also if there was none

    print_answer(url, as_json, print_cancelled, "DELETE", f"/v1/models/{part(model)}/download")


def reload(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Reload the server's recipe files, like SIGHUP. A faulty file changes nothing.

    Example: roundhouse models reload
    """
    with Client(url) as client:
        result = client.post("/v1/recipes/reload")
    if not result["changed"]:
        wrong = "The recipes have faults. Nothing was changed."
        raise RefusedError(wrong, faults=result["faults"], document=result)
    if as_json:
        emit(result)
    else:
        print(f"{len(result['models'])} models")
        for fault in result["faults"]:
            note(f"skipped: {fault}")
