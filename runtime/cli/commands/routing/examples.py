"""Labelled examples from a file, and their vectors from the server."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.failures import RefusedError
from runtime.cli.remote.client import Client, Json, part
from runtime.cli.remote.progress import bar

if TYPE_CHECKING:
    from routing.intents.head import Array
    from routing.routers.content import Router

AT_ONCE = 128
MAX_LINES = 1_000_000
OTHER_LABELS = {"accepted", "target"}
"""Fields that mean another format, in which the rest of the row is not ours."""


def rows(file: Path) -> list[Json]:
    """One JSON object a line, each with a text. Raises Refused with the line that is wrong."""
    result: list[Json] = []
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # not `splitlines`: U+2028 may stand in JSON
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{file} cannot be read: {error}") from None
    if len(lines) > MAX_LINES:
        raise RefusedError(f"{file} has more than {MAX_LINES:,} lines: give a part of it.")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise RefusedError(f"{file}:{number}: no JSON: {error}") from None
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                raise RefusedError(f'{file}:{number}: write {{"text": "...", "intent": "..."}}')
            if not OTHER_LABELS & row.keys() and not isinstance(_intent(row), str | None):
                raise RefusedError(f'{file}:{number}: an "intent" is its name in quotes, or null where there is none.')
            result.append(row)
    if not result:
        raise RefusedError(f"{file} holds no examples.")
    return result


def _intent(row: Json) -> object:
    return row.get("intent", row.get("label"))


def label_of(row: Json) -> str:
    """The example's intent; '-' where it belongs to none."""
    result = _intent(row)
    return result if isinstance(result, str) and result not in ("", "oos", "-") else "-"


def vectors(client: Client, model: str, texts: Sequence[str], is_drawn: bool) -> "Array":
    """Vectors of length 1 by the server's embedding model, of the part of a text that the server reads."""
    import numpy as np

    from routing.intents.head import MAX_CHARACTERS

    made = []
    with bar(is_drawn) as progress:
        for start in range(0, len(texts), AT_ONCE):
            some = [text[:MAX_CHARACTERS] or " " for text in texts[start : start + AT_ONCE]]
            body = {"model": model, "input": some, "encoding_format": "base64", "truncate": True}
            answer = client.post("/v1/embeddings", body)
            made += [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer["data"]]
            progress.show(f"embedding with {model}", min(1.0, (start + AT_ONCE) / len(texts)))
    return np.stack(made).astype(np.float32)


def router(client: Client, name: str) -> tuple["Router", Json]:
    """The server's router, ready to decide here, and the prices of its targets."""
    from registry.recipes.router import RouterSpec
    from routing.intents.model import Kind
    from routing.routers.content import RouterContent

    view = client.get(f"/v1/routers/{part(name)}")
    spec: Any = RouterSpec.model_validate(view["definition"])
    kinds: list[Kind] = view["models"]
    models = tuple(
        (kind, base64.b64decode(client.get(f"/v1/routers/{part(name)}/fitted/{kind}")["safetensors"])) for kind in kinds
    )
    return RouterContent(spec, models).router(view["version"]), view["prices"]
