"""`roundhouse embed` and `rerank`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.failures import RefusedError, UsageError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import emit, table
from runtime.cli.remote.client import Client, Json, only_model

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Id or alias; may be left out where there is only one.", show_default=False),
]


def embed(
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; '-' or none: one per line of standard input.")
    ] = None,
    model: Model = None,
    dimensions: Annotated[int | None, typer.Option(help="Shorten the vectors, where the model allows it.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Turn texts into vectors. Prints the first figures of each; --json prints them all.

    Example: roundhouse embed "a black cat" "a dark feline" --json | jq '.data[0].embedding | length'
    """
    result = _texts(texts)
    with Client(url) as client:
        body: Json = {"model": model or only_model(client, "embed"), "input": result}
        if dimensions is not None:
            body["dimensions"] = dimensions
        answer = client.post("/v1/embeddings", body)
    if as_json:
        emit(answer)
        return
    for text, row in zip(result, answer["data"], strict=True):
        vector = row["embedding"]
        first = " ".join(f"{value:+.4f}" for value in vector[:6])
        print(f"{len(vector)} dimensions  {first} ...  {text}")


def rerank(
    query: Annotated[str, typer.Argument(help="What is looked for.", show_default=False)],
    documents: Annotated[list[str] | None, typer.Argument(help="Texts to order.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="One document per line; '-' reads standard input.")
    ] = None,
    top: Annotated[int | None, typer.Option("--top", "-n", min=1, help="Print only the best N.")] = None,
    model: Model = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Order documents by how well they answer a query, best first, with scores from 0 to 1.

    Example: roundhouse rerank "how do I undo a commit" --file questions.txt --top 5
    """
    result = list(documents or [])
    if file is not None:
        result += _lines(sys.stdin.read() if str(file) == "-" else _read(file))
    if not result:
        raise UsageError("Give documents after the query, or a file of them with --file.")
    with Client(url) as client:
        body: Json = {"model": model or only_model(client, "rerank"), "query": query, "documents": result}
        if top is not None:
            body["top_n"] = top
        answer = client.post("/v1/rerank", body)
    if as_json:
        emit(answer)
        return
    rows = [[f"{row['relevance_score']:.4f}", str(row["index"]), result[row["index"]]] for row in answer["results"]]
    table(["SCORE", "INDEX", "DOCUMENT"], rows, right=["SCORE", "INDEX"])


def _texts(texts: list[str] | None) -> list[str]:
    if texts and texts != ["-"]:
        return texts
    if not texts and sys.stdin.isatty():
        raise UsageError("Give texts, or pipe them in, one per line.")
    result = _lines(sys.stdin.read())
    if not result:
        raise UsageError("Nothing came on standard input. Give texts, or pipe them in, one per line.")
    return result


def _lines(text: str) -> list[str]:
    """Lines that are not empty. Only editors' line ends count; U+2028 is part of a text."""
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise RefusedError(f"{file} is no text: send one document per line, in UTF-8.") from None
