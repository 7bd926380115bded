"""`roundhouse files`: uploaded files."""

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.commands.batches.transfer import FILES, download, upload
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import ago, emit, pairs, show, size, table
from runtime.cli.remote.client import Client, Json, part

Id = Annotated[str, typer.Argument(metavar="FILE", help="Id of a file.", show_default=False)]
app = typer.Typer(help="Files on the server: inputs and outputs of batches.", no_args_is_help=True)


def _show(file: Json) -> None:
    pairs(
        [
            ("file", file["id"]),
            ("name", file["filename"]),
            ("size", size(file["bytes"])),
            ("purpose", file["purpose"]),
            ("status", file["status"]),
            *([("fault", file["status_details"])] if "status_details" in file else []),
        ]
    )


@app.command("upload")
def upload_(
    path: Annotated[Path, typer.Argument(help="A file of this machine.", show_default=False)],
    purpose: Annotated[str, typer.Option(help="batch, user_data or evals.")] = "batch",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload a file. The input of a batch is checked; its status is then processed or error.

    Example: roundhouse files upload requests.jsonl
    """
    with Client(url) as client:
        file = upload(client, path, purpose, drawn=not as_json)
    show(file, as_json, _show)


@app.command("list")
def list_(
    purpose: Annotated[str | None, typer.Option(help="Only files of this purpose.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Newest files to list.")] = 100,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List uploaded files, the newest first.

    Example: roundhouse files list --purpose batch
    """
    with Client(url) as client:
        result = client.get(FILES, purpose=purpose, limit=limit)
    if as_json:
        emit(result)
        return
    rows = [
        [file["id"], file["filename"], size(file["bytes"]), file["purpose"], file["status"], ago(file["created_at"])]
        for file in result["data"]
    ]
    table(["FILE", "NAME", "SIZE", "PURPOSE", "STATUS", "CREATED"], rows, right=["SIZE"])


@app.command()
def get(
    file: Id,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it; else standard output.", show_default=False)
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Fetch the content of a file. With --json, and without --output, show what the server knows of it instead.

    Example: roundhouse files get file-1f2e -o input.jsonl
    """
    with Client(url) as client:
        view = client.get(f"{FILES}/{part(file)}")
        if output is not None or not as_json:
            download(client, file, output)
    if as_json:
        emit(view)
    elif output is not None:
        print(f"{file}: written to {output}")


@app.command()
def delete(file: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a file. A batch that runs keeps its input until it has ended.

    Example: roundhouse files delete file-1f2e
    """
    with Client(url) as client:
        result = client.delete(f"{FILES}/{part(file)}")
    show(result, as_json, lambda view: print(f"{view['id']}: deleted"))
