"""`roundhouse adapters`: register and manage LoRA adapters."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.cli.commands.adapters.combine import WeightsCommand, combine
from runtime.cli.commands.adapters.merge import merge, merged
from runtime.cli.failures import RefusedError
from runtime.cli.options import (
    DEFAULT_URL,
    AdapterName,
    AliasName,
    AliasRemoval,
    AliasVersion,
    AsJson,
    EarlierVersion,
    EvenInUse,
    NewAlias,
    Url,
)
from runtime.cli.output import ago, note, pairs, short, size, table, unless_hidden
from runtime.cli.output import show as show_answer
from runtime.cli.remote.client import Client, Json
from runtime.cli.remote.progress import bar
from runtime.cli.remote.resource import Resource, version_lines

PROBE = ("prompt", "expected")
NEEDS_UPLOAD = frozenset(("source_not_found", "insufficient_scope", "upload_needed"))
"""Error codes of a server that does not accept the folder by its path."""
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


def send(
    client: Client,
    name: str,
    base: str,
    source: str,
    *,
    upload: bool = False,
    dry_run: bool = False,
    alias: str | None = None,
    probe: tuple[str, str] | None = None,
    shared: bool | None = None,
    quiet: bool = False,
) -> Json:
    """Register or check an adapter; return the server's answer. `probe`: a prompt and the start of its greedy answer.

    Raises RefusedError for a missing source.
    """
    about: dict[str, Any] = {"name": name, "base": base, **({"alias": alias} if alias else {})}
    if shared is not None:
        about["shared"] = shared
    params = {"dry_run": "true"} if dry_run else {}
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.endswith(ARCHIVES):
            from adapters.content.forms import foreign_form

            foreign = foreign_form([path.name]) or f"Give {', '.join(ARCHIVES)}, or the adapter's folder."
            raise RefusedError(f"{path} is not an archive. {foreign}")
        return _upload(client, about, probe, path, params, quiet)
    if path.is_dir():
        path = _pefts_folder(path)
        if not upload:
            try:
                return _name(client, about, probe, {"path": str(path.resolve())}, params)
            except RefusedError as refused:
                if refused.code not in NEEDS_UPLOAD:
                    raise
                note(f"The server may not read {path}, so it is sent.")
        import tempfile

        with tempfile.TemporaryDirectory(prefix="roundhouse-") as folder:
            return _upload(client, about, probe, _pack(path, Path(folder)), params, quiet)
    return _name(client, about, probe, _hub(source), params)


def _pefts_folder(path: Path) -> Path:
    """Return the folder with an adapter's files: `path` or one in it. Raises RefusedError."""
    from adapters.content.forms import foreign_form, inner_folder
    from registry.files.sources import something_else

    try:
        path = inner_folder(path)  # peft writes adapters with other names than "default" into a subfolder
    except ValueError as several:
        raise RefusedError(f"{path}: {several}") from None
    if not (path / "adapter_config.json").is_file():
        names = [child.name for child in path.iterdir()]
        what = something_else(names) or foreign_form(names)
        raise RefusedError(f"{path}: {what or 'it has no adapter_config.json. Give the folder that peft wrote.'}")
    return path


def _name(client: Client, about: Json, probe: tuple[str, str] | None, source: Json, params: Json) -> Json:
    """Register an adapter by its source, which the server reads."""
    body = {**about, "source": source, **({"probe": dict(zip(PROBE, probe, strict=True))} if probe else {})}
    return client.post("/v1/adapters", body, **params)


def _hub(source: str) -> Json:
    from launch.request import without_host

    hub, at, revision = without_host(source).partition("@")
    if hub.count("/") != 1 or bool(at) != bool(revision) or hub.startswith((".", "/", "~")) or hub.endswith("/"):
        raise RefusedError(
            f"There is no folder or archive {source}. For a hub, write owner/name or owner/name@revision."
        )
    return {"hub": hub, "revision": revision or "main"}


def _pack(folder: Path, into: Path) -> Path:
    """Pack the files that a server reads as a tar, without a trainer's optimizer or plots beside them."""
    import tarfile

    from adapters.content.forms import CONFIG, TOKENIZER

    archive = into / f"{folder.resolve().name}.tar"
    with tarfile.open(archive, "w", dereference=True) as tar:  # a hub's cache contains links to its files
        for file in sorted(folder.iterdir()):
            if file.is_file() and (file.name in (CONFIG, *TOKENIZER) or file.suffix == ".safetensors"):
                tar.add(file, arcname=file.name, recursive=False)
    return archive


def _upload(
    client: Client, about: Json, probe: tuple[str, str] | None, archive: Path, params: Json, quiet: bool
) -> Json:
    fields = {name: str(value).lower() if isinstance(value, bool) else value for name, value in about.items()}
    fields |= {f"probe_{word}": text for word, text in zip(PROBE, probe or (), strict=False)}
    with ExitStack() as stack:
        progress_bar = stack.enter_context(bar(not quiet))
        sent = (archive.name, stack.enter_context(progress_bar.open(archive)), "application/octet-stream")
        result: Json = client.call("POST", "/v1/adapters", data=fields, files={"file": sent}, params=params)
    return result


app = typer.Typer(
    no_args_is_help=True, help="Add, list, show, share, alias, roll back, pin, combine, merge and remove LoRA adapters."
)

NewName = Annotated[str, typer.Argument(metavar="NAME", help="The name that requests will use.", show_default=False)]
Base = Annotated[str, typer.Option("--base", "-b", help="Id or alias of the adapter's base model.", show_default=False)]
SourceText = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A folder, an archive (zip, tar, tar.gz), or owner/name@revision on a hub.",
        show_default=False,
    ),
]
Upload = Annotated[bool, typer.Option("--upload", help="Pack the folder and send it, for a server on another machine.")]


@app.command("list")
def list_(
    base: Annotated[str | None, typer.Option("--base", "-b", help="Only adapters of this model.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List your team's adapters and the shared ones, with version, location and last use.

    Example: roundhouse adapters list --base starter-chat
    """
    ADAPTERS.list(url, as_json, _print_list, base=base)


@app.command()
def add(
    name: NewName,
    source: SourceText,
    base: Base,
    alias: NewAlias = None,
    probe: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="PROMPT EXPECTED", help="A prompt, and the required start of its greedy answer."),
    ] = None,
    shared: Annotated[
        bool | None,
        typer.Option(
            "--shared/--not-shared",
            help="Whether all teams may use it. [default: unchanged; not shared if new]",
        ),
    ] = None,
    upload: Upload = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Register an adapter, or a new version of one, while the server runs. It belongs to the team of your key.

    Examples: roundhouse adapters add legal ./out/legal --base llama-8b;
    roundhouse adapters add legal legal.tar.gz --base llama-8b;
    roundhouse adapters add legal acme/legal-lora@4f2c9d1 --base llama-8b --alias prod
    """
    with Client(url) as client:
        result = send(client, name, base, source, upload=upload, alias=alias, probe=probe, shared=shared, quiet=as_json)
    show_answer(result, as_json, _print_added)


@app.command()
def validate(
    name: NewName,
    source: SourceText,
    base: Base,
    upload: Upload = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Check an adapter without registering it. Lists all faults at once.

    Example: roundhouse adapters validate legal ./out/legal --base llama-8b
    """
    with Client(url) as client:
        result = send(client, name, base, source, upload=upload, dry_run=True, quiet=as_json)
    show_answer(result, as_json, _print_checked)


@app.command()
def show(name: AdapterName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one adapter: versions, aliases, location, hits and misses.

    Example: roundhouse adapters show legal
    """
    ADAPTERS.show(url, as_json, name)


@app.command()
def remove(
    name: AdapterName,
    version: Annotated[str | None, typer.Option(help="Only this version: v3 or sha256:...")] = None,
    force: EvenInUse = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Remove an adapter, or one version of it. Refused while requests, aliases or a pin use it.

    One version is also refused while it is the current one.

    Example: roundhouse adapters remove legal --version v2
    """
    ADAPTERS.call(url, as_json, "DELETE", name, display=_print_removed, version=version, force=force or None)


@app.command()
def alias(
    name: AdapterName,
    alias: AliasName,
    version: AliasVersion = None,
    remove: AliasRemoval = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Point an alias at a version, with immediate effect for new requests.

    Example: roundhouse adapters alias legal prod v3; then use the model legal@prod
    """
    ADAPTERS.set_alias(url, as_json, name, alias, version, remove=remove)


@app.command()
def rollback(
    name: AdapterName,
    version: EarlierVersion = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make an earlier version the current one.

    Example: roundhouse adapters rollback legal
    """
    ADAPTERS.roll_back(url, as_json, name, version)


@app.command()
def pin(name: AdapterName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Keep an adapter in its place on the device.

    Example: roundhouse adapters pin legal
    """
    ADAPTERS.pin(url, as_json, name)


@app.command()
def unpin(name: AdapterName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Allow other adapters to take this adapter's place again.

    Example: roundhouse adapters unpin legal
    """
    ADAPTERS.pin(url, as_json, name, pinned=False)


@app.command()
def share(
    name: AdapterName,
    stop: Annotated[bool, typer.Option("--stop", help="Stop sharing it, so that only your team may use it.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Let all teams use an adapter of your team, as TEAM/NAME.

    Example: roundhouse adapters share legal; roundhouse adapters share legal --stop
    """
    ADAPTERS.call(url, as_json, "DELETE" if stop else "PUT", name, "shared")


app.command(cls=WeightsCommand)(combine)
app.command()(merge)
app.command()(merged)


# --- output ----------------------------------------------------------------------------------------------------------
def _print_list(result: Json) -> None:
    rows = [
        [
            a["name"],
            a["base"],
            a["team"] + (" (shared)" if a["shared"] else ""),
            a["version"],
            str(a["rank"]),
            size(a["bytes"]),
            a["tier"],
            "yes" if a["pinned"] else "",
            unless_hidden(a, ago(a["last_used"])),
        ]
        for a in result["data"]
    ]
    columns = ["NAME", "BASE", "TEAM", "VERSION", "RANK", "SIZE", "WHERE", "PINNED", "LAST USED"]
    table(columns, rows, right=["RANK", "SIZE"])


def _print_added(added: Json) -> None:
    word = "registered" if added["new"] else "unchanged"
    print(f"{added['name']}: {word}, {added['registered']} {short(added['digest'])}, base {added['base']}")
    for remark in added.get("notes", ()):
        print(f"  {remark}")
    print(f'Use it: roundhouse chat --model {added["name"]} "..."')


def _print_checked(checked: Json) -> None:
    about = f"rank {checked['rank']}, {size(checked['bytes'])}, {checked['digest']}"
    print(f"{checked['name']}: fit for {checked['base']}, {about}")
    for remark in checked["notes"]:
        print(f"  {remark}")


def _print_removed(removed: Json) -> None:
    print(f"{removed['base']}:{removed['name']}: removed {', '.join(short(d) for d in removed['digests'])}")


def _probe(probe: Json | None) -> list[tuple[str, str]]:
    """Format a probe's state, prompt and answer, so that a failure needs no second call."""
    if probe is None:
        return []
    rows = [("probe", probe["state"]), ("  prompt", repr(probe["prompt"])), ("  expected", repr(probe["expected"]))]
    return rows if probe["answered"] is None else [*rows, ("  answered", repr(probe["answered"]))]


def _print_adapter(adapter: Json) -> None:
    pairs(
        [
            ("adapter", f"{adapter['name']} on {adapter['base']}"),
            ("team", adapter["team"] + (", shared with all teams" if adapter["shared"] else "")),
            ("current", f"{adapter['version']} {adapter['digest']}"),
            ("rank, size", f"{adapter['rank']}, {size(adapter['bytes'])}"),
            ("source", adapter["source"]),
            ("where", adapter["tier"] + (", pinned" if adapter["pinned"] else "")),
            ("requests", unless_hidden(adapter, f"{adapter['running']} running, {adapter['waiting']} waiting")),
            (
                "place",
                unless_hidden(
                    adapter, f"{adapter['hits']} hits, {adapter['misses']} misses, {adapter['evictions']} evictions"
                ),
            ),
            ("last used", unless_hidden(adapter, ago(adapter["last_used"]))),
            *_probe(adapter.get("probe")),
        ]
    )
    print("\n".join(version_lines(adapter)))


ADAPTERS = Resource("/v1/adapters", _print_adapter)
