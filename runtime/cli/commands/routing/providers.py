"""`roundhouse providers`: servers of other models."""

from typing import Annotated, Any

import typer

from runtime.cli.commands.models.edits import SET, setting
from runtime.cli.failures import RefusedError, UsageError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import emit, pairs, table
from runtime.cli.output import show as show_answer
from runtime.cli.remote.client import Client, Json
from runtime.cli.remote.resource import Resource

Name = Annotated[str, typer.Argument(metavar="PROVIDER", help="Id of a provider.", show_default=False)]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET.format("timeouts.whole=20m"))
]
app = typer.Typer(help="Models on other servers: add, test and watch their providers.", no_args_is_help=True)


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the providers' models with their circuit breakers: closed is healthy, open gets no requests.

    Example: roundhouse providers list
    """
    PROVIDERS.list(url, as_json, _print_list)


def _print_list(result: Json) -> None:
    rows = []
    for provider in result["data"]:
        key = "set" if provider["key_is_set"] else "NOT SET"
        for model in provider["models"]:
            left = f" ({model['seconds']:.0f} s)" if model["seconds"] else ""
            rows.append([model["id"], provider["protocol"], model["state"] + left, str(provider["running"]), key])
    table(["MODEL", "PROTOCOL", "BREAKER", "RUNNING", "KEY"], rows, right=["RUNNING"])


def _show(view: Json) -> None:
    pairs([(view["id"], f"version {view['version']}, of a {view['source']}")])
    pairs([(f"  {key}", str(value)) for key, value in view["definition"].items()])


PROVIDERS = Resource("/v1/providers", _show)


@app.command()
def show(provider: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a provider's definition. It names the variable or file of the key, but never contains the key.

    Example: roundhouse providers show openai
    """
    PROVIDERS.show(url, as_json, provider)


@app.command()
def add(
    provider: Name,
    base_url: Annotated[str, typer.Option(help="The provider's address, up to and including /v1.", show_default=False)],
    model: Annotated[
        list[str], typer.Option(help="The provider's name of a model; repeat it for several.", show_default=False)
    ],
    protocol: Annotated[str, typer.Option(help="openai or anthropic.")] = "openai",
    key_env: Annotated[str | None, typer.Option(help="Environment variable of the server with the key.")] = None,
    key_file: Annotated[str | None, typer.Option(help="File on the server's machine with the key.")] = None,
    settings: Settings = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a provider. Its models are available at once, as PROVIDER/MODEL.

    Example: roundhouse providers add anthropic --base-url https://api.anthropic.com/v1 --protocol anthropic
    --key-env ANTHROPIC_API_KEY --model claude-haiku-4-5
    """
    models = [{"name": one} for one in model]
    definition: Json = {"protocol": protocol, "base_url": base_url, "models": models}
    definition |= {name: value for name, value in (("key_env", key_env), ("key_file", key_file)) if value is not None}
    with Client(url) as client:
        if any(one["id"] == provider for one in client.get("/v1/providers")["data"]):
            raise RefusedError(
                f"There is already a provider '{provider}'. Change it with: roundhouse providers edit {provider}."
            )
        answer = client.put(PROVIDERS.at(provider), _with(definition, settings))
    show_answer(answer, as_json, _show)


@app.command()
def edit(provider: Name, settings: Settings = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Change values of a provider that was added at run time. An empty value restores the default.

    Example: roundhouse providers edit anthropic --set timeouts.whole=20m --set connections=64
    """
    if not settings:
        raise UsageError(
            "Name what to change, such as --set timeouts.whole=20m. `roundhouse providers show` shows all values."
        )
    with Client(url) as client:
        definition = client.get(PROVIDERS.at(provider))["definition"]
        answer = client.put(PROVIDERS.at(provider), _with(definition, settings))
    show_answer(answer, as_json, _show)


@app.command()
def remove(provider: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Remove a provider that was added at run time. Running requests continue.

    Example: roundhouse providers remove anthropic
    """
    PROVIDERS.call(url, as_json, "DELETE", provider, display=lambda view: print(f"{view['id']}: removed"))


def _with(definition: Json, settings: list[str] | None) -> Json:
    """Apply the values of --set, whose keys may have dots, to a definition."""
    for key, value in map(setting, settings or ()):
        *above, last = key.split(".")
        place: dict[str, Any] = definition
        for name in above:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise UsageError(f"--set {key}: '{name}' holds no keys.")
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return definition


@app.command("test")
def check(provider: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Test a provider: does it answer, does it accept the key, does it have the models of the recipe?

    Example: roundhouse providers test openai
    """
    with Client(url) as client:
        result = client.post(PROVIDERS.at(provider, "test"))
    if not as_json:
        print(f"{result['message']} ({result['seconds']:.3f} s)")
    elif result["ok"]:
        emit(result)
    if not result["ok"]:
        missing = ", ".join(result["missing"])
        wrong = f"It lacks: {missing}." if missing else f"Provider '{provider}' does not answer."
        raise RefusedError(wrong, document=result)
