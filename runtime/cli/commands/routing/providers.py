"""`roundhouse providers`: what answers elsewhere."""

from typing import Annotated

import typer

from runtime.cli.failures import RefusedError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import emit, table
from runtime.cli.remote.client import Client, part

app = typer.Typer(help="Models that answer elsewhere: whose they are, and how it is there.", no_args_is_help=True)


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the providers' models with their breakers: closed is well, open is left alone.

    Example: roundhouse providers list
    """
    with Client(url) as client:
        result = client.get("/v1/providers")
    if as_json:
        emit(result)
        return
    rows = []
    for provider in result["data"]:
        key = "set" if provider["key_is_set"] else "NOT SET"
        for model in provider["models"]:
            left = f" ({model['seconds']:.0f} s)" if model["seconds"] else ""
            rows.append([model["id"], provider["protocol"], model["state"] + left, str(provider["running"]), key])
    table(["MODEL", "PROTOCOL", "BREAKER", "RUNNING", "KEY"], rows, right=["RUNNING"])


@app.command("test")
def check(
    provider: Annotated[str, typer.Argument(help="Its id.", show_default=False)],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Ask a provider for its models: is it there, does it take the key, has it what the recipe names?

    Example: roundhouse providers test openai
    """
    with Client(url) as client:
        result = client.post(f"/v1/providers/{part(provider)}/test")
    if not as_json:
        print(f"{result['message']} ({result['seconds']:.3f} s)")
    elif result["ok"]:
        emit(result)
    if not result["ok"]:
        missing = ", ".join(result["missing"])
        wrong = f"It does not have: {missing}." if missing else f"Provider '{provider}' does not answer."
        raise RefusedError(wrong, document=result)
