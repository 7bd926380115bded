"""`roundhouse routers`: add, list, show, alias, roll back, remove, explain, evaluate and report routers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.commands.routing import fit
from runtime.cli.commands.routing.fit import Name, label_of, router, rows, vectors
from runtime.cli.failures import RefusedError
from runtime.cli.local.options import read_yaml
from runtime.cli.options import (
    DEFAULT_URL,
    AliasName,
    AliasRemoval,
    AliasVersion,
    AsJson,
    EarlierVersion,
    EvenInUse,
    NewAlias,
    Url,
)
from runtime.cli.output import emit, pairs, short, table
from runtime.cli.output import show as show_answer
from runtime.cli.remote.client import Client, Json
from runtime.cli.remote.resource import Resource, print_answer, version_lines

if TYPE_CHECKING:
    from routing.intents.head import Array
    from routing.routers.content import Router

app = typer.Typer(no_args_is_help=True, help="Send requests to models by rules, intents, complexity and cost.")


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List routers with version, targets and trained models.

    Example: roundhouse routers list
    """
    ROUTERS.list(url, as_json, _print_list)


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="A YAML file with `kind: router`.", show_default=False)],
    alias: NewAlias = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a router, or a new version of one, while the server runs. Keeps the models trained for it.

    Example: roundhouse routers add support.yaml --alias prod
    """
    try:
        body = read_yaml(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, RefusedError) as error:
        raise RefusedError(f"{file} cannot be read: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError(f"{file} is not a router. Write one document with `id` and `targets`.")
    with Client(url) as client:
        result = client.call("POST", "/v1/routers", json=body, params={"alias": alias} if alias else {})
    show_answer(result, as_json, _print_added)


@app.command()
def show(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a router: its versions, aliases and definition.

    Example: roundhouse routers show auto
    """
    ROUTERS.show(url, as_json, name)


@app.command()
def alias(
    name: Name,
    alias: AliasName,
    version: AliasVersion = None,
    remove: AliasRemoval = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Point an alias at a version, with immediate effect for new requests.

    Example: roundhouse routers alias auto prod v3; then use the model auto@prod
    """
    ROUTERS.set_alias(url, as_json, name, alias, version, remove=remove)


@app.command()
def rollback(name: Name, version: EarlierVersion = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Make an earlier version the current one.

    Example: roundhouse routers rollback auto
    """
    ROUTERS.roll_back(url, as_json, name, version)


@app.command()
def remove(name: Name, force: EvenInUse = False, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Remove a router with all its versions. Refused while aliases point to it.

    Example: roundhouse routers remove support
    """
    ROUTERS.call(
        url, as_json, "DELETE", name, display=lambda removed: print(f"{removed['name']}: removed"), force=force or None
    )


app.command()(fit.fit)


# --- output ----------------------------------------------------------------------------------------------------------
def _print_list(result: Json) -> None:
    rows = [
        [r["name"], r["version"], str(len(r["definition"]["targets"])), ", ".join(r["models"]) or "-",
         r["definition"].get("description", "")]
        for r in result["data"]
    ]  # fmt: skip
    table(["NAME", "VERSION", "TARGETS", "FITTED", "DESCRIPTION"], rows, right=["TARGETS"])


def _print_added(added: Json) -> None:
    word = "added" if added["new"] else "unchanged"
    print(f"{added['name']}: {word}, {added['version']} {short(added['digest'])}")
    print(f'Use it: roundhouse chat --model {added["name"]} "..."')


def _print_router(router: Json) -> None:
    definition = router["definition"]
    pairs(
        [
            ("router", router["name"]),
            ("version", f"{router['version']} {router['digest']}"),
            ("fitted", ", ".join(router["models"]) or "nothing"),
            ("targets", ", ".join(target["name"] for target in definition["targets"])),
            ("default", definition.get("default", "by state and price")),
            ("fallbacks", ", ".join(definition.get("fallbacks", [])) or "none"),
            ("rules", ", ".join(rule["name"] for rule in definition.get("rules", [])) or "none"),
        ]
    )
    print("\n".join(version_lines(router)))


ROUTERS = Resource("/v1/routers", _print_router)


VersionedName = Annotated[
    str, typer.Argument(metavar="NAME", help="The router's name, or NAME@VERSION.", show_default=False)
]


@app.command()
def explain(
    name: VersionedName,
    text: Annotated[str, typer.Argument(help="A user's message.", show_default=False)],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show which target a router would choose for a text, and why. Calls no target.

    Example: roundhouse routers explain auto "3 March 2024"
    """
    body = {"model": name, "messages": [{"role": "user", "content": text}]}
    print_answer(url, as_json, _print_decision, "POST", "/v1/route", body)


def _print_decision(result: Json) -> None:
    pairs(
        [
            ("router", result["router"]),
            ("target", result["target"]),
            ("reason", result["reason"]),
            ("scores", ", ".join(f"{label} {score:.3f}" for label, score in result["scores"].items()) or "none"),
            ("alternatives", ", ".join(result["alternatives"]) or "none"),
            ("fallbacks", ", ".join(result["fallbacks"]) or "none"),
            *((f"saw {key}", value) for key, value in result["saw"].items()),
        ]
    )


@app.command("eval")
def evaluate(
    name: VersionedName,
    file: Annotated[
        Path,
        typer.Argument(metavar="DATA", help='JSON lines: {"text", "intent" or "target"}.', show_default=False),
    ],
    letters: Annotated[
        bool, typer.Option("--letters", help="Decide without the embedding model, as if it were not loaded.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Decide for each row of a file, as if every target were resident and free, and count the correct decisions.

    Example: roundhouse routers eval auto held-out.jsonl
    """
    from registry.recipes.definition import Task

    given = rows(file)
    with Client(url) as client:
        result, prices = router(client, name)
        if result.spec.task is Task.TRANSCRIBE:
            raise RefusedError(
                f"Router '{result.spec.id}' is for recordings, but these rows are texts. Use POST /v1/route for each: "
                '{"model", "endpoint": "/v1/audio/transcriptions", "language"}.'
            )
        model = None if letters else result.embedding
        made = None if model is None else vectors(client, model, [row["text"] for row in given], not as_json)
    outcome = _decide_all(result, prices, given, made)
    if as_json:
        emit(outcome.summary(result.label))
        return
    pairs_of_names = [[a, b, str(n)] for (a, b), n in outcome.counts.most_common(40)]
    table(["BELONGS TO", "WENT TO", "ROWS"], pairs_of_names, right=["ROWS"])
    if outcome.inside:
        print(f"{outcome.right / outcome.inside:.1%} of {outcome.inside} went where they belong")
    if outcome.outside:
        share = outcome.abstained / outcome.outside
        print(f"the router abstained from {share:.1%} of {outcome.outside} that belong nowhere")


@dataclass
class RouterOutcome:
    """What a router decided for rows of a file."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows by the target where they belong ('-': nowhere) and the one that was chosen."""
    inside: int = 0
    """Rows that belong somewhere."""
    right: int = 0
    outside: int = 0
    """Rows that belong nowhere."""
    abstained: int = 0

    def summary(self, label: str) -> Json:
        return {
            "router": label,
            "rows": self.inside + self.outside,
            "right": self.right / self.inside if self.inside else None,
            "abstained_outside": self.abstained / self.outside if self.outside else None,
            "pairs": [{"wanted": a, "target": b, "count": count} for (a, b), count in self.counts.most_common()],
        }


def _decide_all(
    router: "Router", prices: Mapping[str, float], given: Sequence[Json], made: "Array | None"
) -> RouterOutcome:
    """Decide for each row. made: a vector for each; None to decide by letters."""
    from routing.decide import decide
    from routing.decision import Facts, Features, TargetFacts

    facts = Facts({t.name: TargetFacts(price=prices.get(t.name, 0.0), takes_images=True) for t in router.spec.targets})
    routes = router.spec.intents.routes if router.spec.intents else {}
    outcome = RouterOutcome()
    for place, row in enumerate(given):
        text = row["text"]
        vector = None if made is None else made[place]
        features = Features(text, characters=len(text), vector=vector, draw=Random(place).random())
        decision = decide(features, router, facts)
        targets = [row["target"]] if isinstance(row.get("target"), str) else list(routes.get(label_of(row), ()))
        if targets:
            outcome.inside += 1
            outcome.right += decision.target in targets
        else:
            outcome.outside += 1
            outcome.abstained += decision.reason in ("abstained", "default", "weight", "state")
        outcome.counts[targets[0] if targets else "-", decision.target] += 1
    return outcome


@app.command()
def report(
    name: Name,
    days: Annotated[float, typer.Option(min=0.01, max=366.0, help="Days to look back.")] = 7.0,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the results of a router's decisions: requests, acceptance and cost per target, and by other thresholds.

    Acceptance comes from POST /v1/feedback.

    Example: roundhouse routers report auto --days 1
    """
    ROUTERS.call(url, as_json, "GET", name, "report", display=_print_report, days=days)


def _print_report(result: Json) -> None:
    rows = [
        [o["target"], o["reason"], str(o["requests"]), _percent(o["accepted"]), f"{o['cost_micro'] / 1e6:.6f}"]
        for o in result["outcomes"]
    ]
    table(["TARGET", "REASON", "REQUESTS", "ACCEPTED", "COST"], rows, right=["REQUESTS", "ACCEPTED", "COST"])
    points = [
        [f"{p['threshold']:.2f}", _percent(p["answered"]), _percent(p["accepted"]), f"{p['cost_micro'] / 1e6:.6f}"]
        for p in result["replay"]
    ]
    if points:
        print("\nResults that another threshold of its intents would have given:")
        table(["THRESHOLD", "DECIDED", "ACCEPTED", "COST"], points, right=["THRESHOLD", "DECIDED", "ACCEPTED", "COST"])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
