"""An adapter's source: a folder on the server's machine, an archive, or a hub."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from runtime.cli.failures import RefusedError
from runtime.cli.output import note
from runtime.cli.remote.client import Client, Json
from runtime.cli.remote.progress import bar

PROBE = ("prompt", "expected")
NEEDS_UPLOAD = frozenset(("source_not_found", "insufficient_scope", "upload_needed"))
"""Codes of a server that does not take the folder by its path."""
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
    """Register or check an adapter; the server's answer. `probe`: a prompt, and how its greedy answer begins.

    Raises Refused for a source that is not there.
    """
    about: dict[str, Any] = {"name": name, "base": base, **({"alias": alias} if alias else {})}
    if shared is not None:
        about["shared"] = shared
    params = {"dry_run": "true"} if dry_run else {}
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.endswith(ARCHIVES):
            raise RefusedError(f"{path} is no archive. Give {', '.join(ARCHIVES)}, or the adapter's folder.")
        return _upload(client, about, probe, path, params, quiet)
    if path.is_dir():
        from adapters.content.forms import inner_folder

        try:
            path = inner_folder(path)  # peft's folder of an adapter that is not called default
        except ValueError as several:
            raise RefusedError(f"{path}: {several}") from None
        if not (path / "adapter_config.json").is_file():
            from registry.files.sources import something_else

            what = something_else([child.name for child in path.iterdir()])
            raise RefusedError(f"{path}: {what or 'it has no adapter_config.json. Give the folder that peft wrote.'}")
        if not upload:
            try:
                return _name(client, about, probe, {"path": str(path.resolve())}, params)
            except RefusedError as refused:
                if refused.code not in NEEDS_UPLOAD:
                    raise
                note(f"The server may not read {path}: sending it.")
        import tempfile

        with tempfile.TemporaryDirectory(prefix="roundhouse-") as folder:
            return _upload(client, about, probe, _pack(path, Path(folder)), params, quiet)
    return _name(client, about, probe, _hub(source), params)


def _name(client: Client, about: Json, probe: tuple[str, str] | None, source: Json, params: Json) -> Json:
    """Tell the server where it finds the adapter."""
    body = {**about, "source": source, **({"probe": dict(zip(PROBE, probe, strict=True))} if probe else {})}
    return client.post("/v1/adapters", body, **params)


def _hub(source: str) -> Json:
    hub, at, revision = source.partition("@")
    if hub.count("/") != 1 or bool(at) != bool(revision) or hub.startswith((".", "/", "~")) or hub.endswith("/"):
        raise RefusedError(f"There is no folder or archive {source}. From a hub: owner/name, or owner/name@revision.")
    return {"hub": hub, "revision": revision or "main"}


def _pack(folder: Path, into: Path) -> Path:
    """The folder's own files as a tar: what an adapter consists of lies flat."""
    import tarfile

    archive = into / f"{folder.resolve().name}.tar"
    with tarfile.open(archive, "w", dereference=True) as tar:  # a hub's cache holds links to its files
        for file in sorted(folder.iterdir()):
            if file.is_file():
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
