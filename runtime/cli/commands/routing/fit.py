"""`roundhouse routers fit`: train a new version of a router on this machine, from labelled examples."""

import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.failures import RefusedError, UsageError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import emit, note
from runtime.cli.remote.client import Client, Json, part
from runtime.cli.remote.progress import bar

if TYPE_CHECKING:
    from routing.intents.head import Array
    from routing.routers.content import Router

Name = Annotated[str, typer.Argument(metavar="NAME", help="The router's name.", show_default=False)]
AT_ONCE = 128
MAX_LINES = 1_000_000
OTHER_LABELS = {"accepted", "target"}
"""Fields of other formats, in which the remaining fields of a row are not checked."""


def rows(file: Path) -> list[Json]:
    """Read one JSON object per line, each with a text. Raises RefusedError with the number of a faulty line."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # not `splitlines`: U+2028 may stand in JSON
    except UnicodeDecodeError as error:
        raise RefusedError(f"{file} cannot be read: {error}") from None
    if len(lines) > MAX_LINES:
        raise RefusedError(f"{file} has more than {MAX_LINES:,} lines. Give a part of it.")
    result = [_row(line, f"{file}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not result:
        raise RefusedError(f"{file} has no examples.")
    return result


def _row(line: str, where: str) -> Json:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RefusedError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise RefusedError(f'{where}: write {{"text": "...", "intent": "..."}}')
    if not OTHER_LABELS & row.keys() and not isinstance(_intent(row), str | None):
        raise RefusedError(f'{where}: "intent" must be a name in quotes, or null if there is none.')
    return {**row, "text": row["text"].encode(errors="replace").decode()}  # JavaScript cuts emojis in half


def _intent(row: Json) -> object:
    return row.get("intent", row.get("label"))


def label_of(row: Json) -> str:
    """Return the example's intent; '-' if it has none."""
    result = _intent(row)
    return result if isinstance(result, str) and result not in ("", "oos", "-") else "-"


def vectors(client: Client, model: str, texts: Sequence[str], is_drawn: bool) -> "Array":
    """Embed texts with the server's model, as vectors of length 1, from the part of each text that the server reads."""
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
    """Fetch a router that can decide in this process, and the prices of its targets."""
    from registry.recipes.router import RouterSpec
    from routing.intents.kinds import Kind
    from routing.routers.content import RouterContent

    view = client.get(f"/v1/routers/{part(name)}")
    spec: Any = RouterSpec.model_validate(view["definition"])
    kinds: list[Kind] = view["models"]
    models = tuple(
        (kind, base64.b64decode(client.get(f"/v1/routers/{part(name)}/fitted/{kind}")["safetensors"])) for kind in kinds
    )
    return RouterContent(spec, models).router(view["version"]), view["prices"]


def fit(
    name: Name,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="EXAMPLES",
            help='JSON lines: {"text", "intent"} (no intent: out of scope), or {"text", "accepted": {TARGET: 0 to 1}}.',
            show_default=False,
        ),
    ],
    held: Annotated[
        Path | None,
        typer.Option("--held-out", help="Examples to choose thresholds on.", show_default="a fifth of EXAMPLES"),
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(
            min=0.5, max=1.0, help="For intents: the share of decisions that must be right.", show_default="0.99"
        ),
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(
            help="Embedding model to use; '-' for letters alone.", show_default="the one in the router's definition"
        ),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="For intents: write the confusion table as an SVG.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure without changing anything.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Train a router's model of intents, or of which targets are good enough, and measure it on held-out examples.

    Examples: roundhouse routers fit support tickets.jsonl --picture confusion.svg;
    roundhouse routers fit support judged.jsonl  # rows with "accepted": the cheapest target that is good enough
    """
    from registry.errors import RoundhouseError

    if "@" in name:
        raise UsageError("Name the router without a version, because fitting creates a new one.")
    given = rows(file)
    of_complexity = any("accepted" in row for row in given)
    if of_complexity and (precision is not None or picture is not None):
        raise UsageError('--precision and --picture are for examples of intents, but these rows have "accepted".')
    with Client(url) as client:
        view = client.get(f"/v1/routers/{part(name)}")
        written = (view["definition"].get("intents") or {}).get("embedding")
        requested = embedding or written or "-"
        model = None if requested == "-" else requested
        if not dry_run:
            _check_stage(name, view, "complexity" if of_complexity else "intents")
            if of_complexity:
                _check_targets(name, view, given)
            if written is not None and model not in (None, written):
                raise RefusedError(
                    f"Router '{name}' uses the embedding model '{written}', not '{model}'. "
                    f"Write `embedding: {model}` into its `intents`, then roundhouse routers add FILE, then this again."
                )
        try:
            if of_complexity:
                kind, data, measured = _complexity(client, view, given, held, model, not as_json)
            else:
                routes = (view["definition"].get("intents") or {}).get("routes") or {}
                if not as_json and (unrouted := sorted({label_of(row) for row in given} - {"-", *routes})):
                    note(f"There is no route for {', '.join(unrouted)}, so the router abstains from these.")
                share = 0.99 if precision is None else precision
                kind, data, measured = _intents(client, given, held, model, share, picture, not as_json)
        except RoundhouseError as error:
            raise RefusedError(error.message) from None
        if not dry_run:
            body = {"safetensors": base64.b64encode(data).decode()}
            view = client.put(f"/v1/routers/{part(name)}/fitted/{kind}", body)
    if as_json:
        emit({"name": name, "version": view["version"], "kind": kind, "bytes": len(data), "measured": measured})
    elif dry_run:
        print("Nothing was changed.")
    else:
        print(f"{name}: {view['version']} is now current. To go back: roundhouse routers rollback {name}")


STAGES = {"intents": "intents: {routes: {INTENT: [TARGET]}}", "complexity": "complexity: {}"}


def _check_stage(name: str, view: Json, kind: str) -> None:
    """Raise RefusedError if the router lacks this stage, because the trained model would have no effect."""
    if kind not in view["definition"]:
        raise RefusedError(
            f"Router '{name}' has no `{kind}`, so a model fitted for it would have no effect. Write `{STAGES[kind]}` "
            f"into its YAML, then roundhouse routers add FILE, then this again. --dry-run only measures."
        )


def _check_targets(name: str, view: Json, given: list[Json]) -> None:
    """Raise RefusedError for examples of a target that the router lacks, which would never be chosen."""
    targets = {target["name"] for target in view["definition"]["targets"]}
    if unknown := sorted({target for row in given for target in _accepted(row)} - targets):
        raise RefusedError(f"'{unknown[0]}' is not a target of '{name}'. There are: {', '.join(sorted(targets))}.")


def _intents(
    client: Client, given: list[Json], held: Path | None, model: str | None, precision: float, picture: Path | None,
    is_verbose: bool,
) -> tuple[str, bytes, Any]:  # fmt: skip
    import msgspec

    from routing.intents import report
    from routing.intents.model import to_bytes
    from routing.intents.spelling import Spelling
    from routing.intents.training import Example, TrainingOptions, split, train

    options = TrainingOptions(precision=precision)
    examples = [Example(row["text"], label_of(row)) for row in given]
    if held is None:
        texts, labels = [example.text for example in examples], [example.label for example in examples]
        fitting, holding = split(texts, labels, options.held_out)
        chosen = [examples[place] for place in holding]
        examples = [examples[place] for place in fitting]
    else:
        chosen = [Example(row["text"], label_of(row)) for row in rows(held)]
    if not chosen:
        raise UsageError("There are no examples to hold out. Give at least two different examples of each intent.")
    spelling, both = Spelling.of(e.text for e in examples), None
    if model is not None:
        read = [*(e.text for e in examples), *(spelling.corrected(e.text) for e in chosen)]
        made = vectors(client, model, read, is_verbose)
        both = made[: len(examples)], made[len(examples) :]
    if is_verbose:
        note(f"training on {len(examples)} examples")
    fitted = train(examples, chosen, both, model, options, spelling)
    if is_verbose:
        for measured in fitted.measured:
            print(report.text(measured))
    if picture is not None:
        picture.write_text(report.picture(fitted.measured[-1]), encoding="utf-8")
        note(f"wrote {picture}")
    return "intents", to_bytes(fitted.model), msgspec.to_builtins(fitted.measured)


def _complexity(
    client: Client, view: Json, given: list[Json], held: Path | None, model: str | None, is_verbose: bool
) -> tuple[str, bytes, Any]:
    import msgspec

    from routing.intents.acceptance import JudgedText, chosen, curve, train_acceptance, with_thresholds
    from routing.intents.model import to_bytes
    from routing.intents.report import curve_text
    from routing.intents.training import split

    judged = [JudgedText(row["text"], _accepted(row)) for row in given]
    if held is None:
        verdicts = [str(sorted((name, value >= 0.5) for name, value in one.accepted.items())) for one in judged]
        fitting, holding = split([one.text for one in judged], verdicts, 0.2)
        holdout, judged = [judged[place] for place in holding], [judged[place] for place in fitting]
    else:
        holdout = [JudgedText(row["text"], _accepted(row)) for row in rows(held)]
    if not holdout:
        raise UsageError("There are no examples to hold out. Give more rows, or --held-out.")
    made = None
    if model is not None:
        made = vectors(client, model, [one.text for one in (*judged, *holdout)], is_verbose)
    fitted = train_acceptance(judged, None if made is None else made[: len(judged)], model)
    looks = [("letters", None), *([] if made is None else [("letters and vector", made[len(judged) :])])]
    measured: list[Json] = []
    for features, looked in looks:
        points = curve(fitted, holdout, looked, view["prices"])
        best = chosen(points)
        measured.append({"features": features, "threshold": best.threshold, "curve": msgspec.to_builtins(points)})
        if is_verbose:
            print(f"using {features}, on {len(holdout)} held-out rows:")
            print(curve_text(points))
            print(f"chosen: {best.threshold:.2f}, the cheapest that loses at most 1 % of acceptance")
    if is_verbose:
        note("If the router's definition has a `complexity.threshold`, it takes precedence.")
    return "complexity", to_bytes(with_thresholds(fitted, *(one["threshold"] for one in measured))), measured


def _accepted(row: Json) -> dict[str, float]:
    result = row.get("accepted")
    if not isinstance(result, dict) or not result:
        raise RefusedError('Either all rows or none must have "accepted": {"TARGET": 0 to 1}.')
    try:
        values = {str(name): float(value) for name, value in result.items()}
    except (TypeError, ValueError):
        values = {"": math.nan}
    if not all(0 <= value <= 1 for value in values.values()):
        raise RefusedError('Values of "accepted" must be numbers from 0 to 1.')
    return values
