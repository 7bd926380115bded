"""`roundhouse routers fit`: from labelled examples to a new version of a router. Trains here, not in the server."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.commands.routers.data import label_of, rows, vectors
from runtime.cli.failures import Refused, UsageError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import emit, note
from runtime.cli.remote.client import Client, Json, part

if TYPE_CHECKING:
    from routing.intents.acceptance import Point
    from routing.intents.model import Acceptance


def fit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The router's name.", show_default=False)],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="EXAMPLES",
            help='JSON lines: {"text", "intent"} (no intent: out of scope), or {"text", "accepted": {TARGET: 0 to 1}}.',
            show_default=False,
        ),
    ],
    held: Annotated[
        Path | None, typer.Option("--held-out", help="Choose thresholds on these; else on a fifth of EXAMPLES.")
    ] = None,
    precision: Annotated[
        float, typer.Option(min=0.5, max=1.0, help="The threshold is chosen so that this share of answers is right.")
    ] = 0.99,
    embedding: Annotated[
        str | None, typer.Option(help="Embedding model to look with; none: as the router says; '-': letters alone.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write the confusion table as an SVG.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, and change nothing.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Train what a router tells intents by, or which targets are good enough, and measure it on held-out examples.

    Examples: roundhouse routers fit support tickets.jsonl --picture confusion.svg;
    roundhouse routers fit support judged.jsonl   (rows with "accepted": the cheapest target that is good enough)
    """
    from registry.errors import RoundhouseError

    given = rows(file)
    with Client(url) as client:
        view = client.get(f"/v1/routers/{part(name)}")
        wanted = embedding or (view["definition"].get("intents") or {}).get("embedding") or "-"
        model = None if wanted == "-" else wanted
        try:
            if any("accepted" in row for row in given):
                kind, data, measured = _complexity(client, view, given, model, not as_json)
            else:
                kind, data, measured = _intents(client, given, held, model, precision, picture, not as_json)
        except RoundhouseError as error:
            raise Refused(error.message) from None
        if not dry_run:
            body = {"safetensors": base64.b64encode(data).decode()}
            view = client.put(f"/v1/routers/{part(name)}/fitted/{kind}", body)
    if as_json:
        emit({"name": name, "version": view["version"], "kind": kind, "bytes": len(data), "measured": measured})
    elif dry_run:
        print("Nothing was changed.")
    else:
        print(f"{name}: {view['version']} counts now. Back to the one before: roundhouse routers rollback {name}")


def _intents(
    client: Client, given: list[Json], held: Path | None, model: str | None, precision: float, picture: Path | None,
    shown: bool,
) -> tuple[str, bytes, Any]:  # fmt: skip
    import msgspec

    from routing.intents import report
    from routing.intents.files import to_bytes
    from routing.intents.spelling import Spelling
    from routing.intents.training import Example, TrainingOptions, split, train

    options = TrainingOptions(precision=precision)
    examples = [Example(row["text"], label_of(row)) for row in given]
    if held is None:
        fitting, holding = split([example.label for example in examples], options.held_out)
        chosen = [examples[place] for place in holding]
        examples = [examples[place] for place in fitting]
    else:
        chosen = [Example(row["text"], label_of(row)) for row in rows(held)]
    if not chosen:
        raise UsageError("There is nothing to hold out: give at least two examples of each intent.")
    spelling, both = Spelling.of(e.text for e in examples), None
    if model is not None:
        read = [*(e.text for e in examples), *(spelling.corrected(e.text) for e in chosen)]
        made = vectors(client, model, read, shown)
        both = made[: len(examples)], made[len(examples) :]
    if shown:
        note(f"training on {len(examples)} examples")
    fitted = train(examples, chosen, both, model, options, spelling)
    if shown:
        for measured in fitted.measured:
            print(report.text(measured))
    if picture is not None:
        picture.write_text(report.picture(fitted.measured[-1]), encoding="utf-8")
        note(f"wrote {picture}")
    return "intents", to_bytes(fitted.model), msgspec.to_builtins(fitted.measured)


def _complexity(
    client: Client, view: Json, given: list[Json], model: str | None, shown: bool
) -> tuple[str, bytes, Any]:
    import msgspec

    from routing.intents.acceptance import Judged, chosen, curve, train_acceptance, with_threshold
    from routing.intents.files import to_bytes
    from routing.intents.report import curve_text
    from routing.intents.training import split

    judged = [Judged(row["text"], _accepted(row)) for row in given]
    fitting, holding = split([str(sorted(one.accepted.items())) for one in judged], 0.2)
    made = vectors(client, model, [one.text for one in judged], shown) if model is not None else None
    fitted: Acceptance = train_acceptance([judged[p] for p in fitting], None if made is None else made[fitting], model)
    holdout = None if made is None else made[holding]
    points: list[Point] = curve(fitted, [judged[p] for p in holding], holdout, view["prices"])
    best = chosen(points)
    if shown:
        print(curve_text(points))
        print(f"chosen: {best.threshold:.2f}, the cheapest that loses at most 1 % of acceptance")
        note("The router's `complexity.threshold` is another one, where it is written.")
    measured = {"threshold": best.threshold, "curve": msgspec.to_builtins(points)}
    return "complexity", to_bytes(with_threshold(fitted, best.threshold)), measured


def _accepted(row: Json) -> dict[str, float]:
    found = row.get("accepted")
    if not isinstance(found, dict) or not found:
        raise Refused('Each row needs "accepted": {"TARGET": 0 to 1}, or none of them.')
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (TypeError, ValueError):
        raise Refused('Values of "accepted" are figures from 0 to 1.') from None
