"""`roundhouse adapters combine`: make one adapter from several, on the server."""

from itertools import takewhile
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from runtime.cli.failures import UsageError
from runtime.cli.options import DEFAULT_URL, AsJson, NewAlias, Url
from runtime.cli.output import emit, short
from runtime.cli.remote.client import Client
from runtime.cli.remote.progress import bar

WEIGHTS = "--weights"


class WeightsCommand(TyperCommand):
    """Parses `--weights 0.7 0.3` as one option with two numbers, which click does not support."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            numbers = list(takewhile(_is_number, rest)) if word == WEIGHTS else []
            spread += [part for number in numbers for part in (WEIGHTS, number)] or [word]
            del rest[: len(numbers)]
        return super().parse_args(ctx, spread)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def combine(
    adapters: Annotated[
        list[str],
        typer.Argument(metavar="ADAPTER...", help="Two to eight adapters of the same base.", show_default=False),
    ],
    weights: Annotated[
        list[float],
        typer.Option(WEIGHTS, metavar="NUMBER...", help="One weight per adapter, in order.", show_default=False),
    ],
    name: Annotated[str, typer.Option("--name", help="Name of the new adapter.", show_default=False)],
    method: Annotated[
        Literal["linear", "ties", "dare"],
        typer.Option(help="linear: the weighted sum. ties, dare: the same of a part of the values."),
    ] = "linear",
    density: Annotated[float, typer.Option(help="Share of values that ties and dare keep.")] = 0.5,
    halves: Annotated[
        bool, typer.Option("--halves", help="Combine the halves A and B separately: faster, but approximate.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed for the values that dare drops. The same seed gives the same adapter.")
    ] = 0,
    alias: NewAlias = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make one adapter from several, and register it like any other.

    Example: roundhouse adapters combine legal polite --weights 0.7 0.3 --name legal-polite
    """
    if len(weights) != len(adapters):
        raise UsageError(f"There are {len(adapters)} adapters and {len(weights)} weights: give one for each.")
    parts = [{"name": adapter, "weight": weight} for adapter, weight in zip(adapters, weights, strict=True)]
    body = {"name": name, "adapters": parts, "method": method, "density": density, "halves": halves, "seed": seed}
    with Client(url) as client, bar(not as_json) as progress_bar:
        progress_bar.show(f"combining into {name}", 0.0)
        result = client.call(
            "POST", "/v1/adapters/combine", json={**body, **({"alias": alias} if alias else {})}, timeout=None
        )
    if as_json:
        emit(result)
        return
    word = "registered" if result["new"] else "unchanged"
    print(f"{result['name']}: {word}, {result['registered']} {short(result['digest'])}, rank {result['rank']}")
    print(f"  {result['source']}")
