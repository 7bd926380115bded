"""`roundhouse models`: list models, and control residency by hand."""

from typing import Annotated

import typer

from runtime.cli.commands.models import edits
from runtime.cli.options import DEFAULT_URL, AsJson, Force, ModelName, Url
from runtime.cli.output import ago, pairs, seconds, size, table, unless_hidden
from runtime.cli.output import show as show_answer
from runtime.cli.remote.client import Client, Json
from runtime.cli.remote.progress import Watch, bar
from runtime.cli.remote.resource import Resource

app = typer.Typer(no_args_is_help=True, help="List, add, change, remove, load, unload, pin and plan models.")


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List all models with task, state and size, including providers' models and routers.

    Example: roundhouse models list --json | jq -r '.data[].id'
    """
    MODELS.list(url, as_json, _print_list)


@app.command()
def show(model: ModelName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one model: state, memory, loads, adapters, and what is wrong with it if it failed.

    Example: roundhouse models show starter-chat
    """
    MODELS.call(url, as_json, "GET", model, display=_print_details)


@app.command()
def load(
    model: ModelName,
    wait: Annotated[bool, typer.Option(help="Wait until it is loaded, with a progress bar.")] = True,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Load a model into memory. Evicts idle models if it needs their room.

    Example: roundhouse models load starter-speech && roundhouse transcribe talk.wav
    """
    if not wait:
        MODELS.call(url, as_json, "POST", model, "load", wait="false")
        return
    with Client(url) as client, bar(not as_json) as progress_bar, Watch(url, model, progress_bar):
        result = client.call("POST", MODELS.at(model, "load"), timeout=None)  # the bar shows the progress
    show_answer(result, as_json, _print_model)


@app.command()
def unload(model: ModelName, force: Force = False, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Unload a model from memory after its running requests have finished.

    Example: roundhouse models unload starter-chat
    """
    MODELS.call(url, as_json, "POST", model, "unload", force=force or None)


@app.command()
def pin(model: ModelName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Never evict this model. It is loaded at the next start of the server, or by the first request.

    Example: roundhouse models pin starter-chat
    """
    MODELS.pin(url, as_json, model)


@app.command()
def unpin(model: ModelName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Allow this model to be evicted again.

    Example: roundhouse models unpin starter-chat
    """
    MODELS.pin(url, as_json, model, pinned=False)


@app.command()
def plan(model: ModelName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show what a load would do now: bytes needed and free, evicted models, duration. Changes nothing.

    It is about the server at --url. For the nodes of a fleet: roundhouse fleet plan.

    Example: roundhouse models plan starter-speech
    """
    MODELS.call(url, as_json, "POST", model, "plan", display=_print_plan)


@app.command("forget-estimate")
def forget_estimate(model: ModelName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Forget the memory measured at a model's loads. Its next load is planned with an estimate from its files.

    Example: roundhouse models forget-estimate starter-chat
    """
    MODELS.call(url, as_json, "DELETE", model, "estimate")


for command in (edits.add, edits.check, edits.edit, edits.remove, edits.export, edits.cancel, edits.reload):
    app.command()(command)


# --- output ----------------------------------------------------------------------------------------------------------
def state(model: Json) -> str:
    """Describe a model's state, with the progress of a load; for a provider's model or a router, its kind."""
    if "state" not in model:
        return str(model.get("kind") or f"elsewhere, at {model['owned_by']}")
    if model.get("problem"):
        return "broken"
    progress = model.get("progress")
    if progress and model["state"] == "loading":
        return f"{model['state']}, {progress['phase']} {progress['percent']:.0f} %"
    if progress and model["state"] == "draining":
        return f"{model['state']}, {progress['phase']}"
    return str(model["state"])


def _bytes(model: Json) -> str:
    """Format the bytes that it holds or, if none, those that it needs."""
    return size(model["bytes"]) if model["bytes"] else f"(needs {size(model['expected_bytes'])})"


def _on_host(host: Json) -> str:
    free = f"{size(host['bytes_free'])} of {size(host['budget_bytes'])} free"
    return f"needs {size(host['bytes_needed'])}, {free}"


def _print_model(model: Json) -> None:
    pinned = ", pinned" if model["pinned"] else ""
    print(f"{model['id']}: {state(model)}{pinned}, {_bytes(model).strip('()')}")


def _print_list(result: Json) -> None:
    rows = []
    for model in result["data"]:
        if model.get("parent"):
            continue
        names = ", ".join(model.get("aliases", ())) or "-"
        held = [_bytes(model), str(len(model["adapters"]))] if "state" in model else ["-", "-"]
        rows.append([model["id"], names, model["task"], state(model), *held])
    table(["MODEL", "ALIASES", "TASK", "STATE", "MEMORY", "ADAPTERS"], rows, right=["MEMORY", "ADAPTERS"])


def _print_details(result: Json) -> None:
    if result.get("parent"):
        pairs([("adapter", f"{result['id']} ({result['version']})"), ("base", result["parent"])])
        return
    if "state" not in result:
        pairs([("model", result["id"]), ("state", state(result)), ("description", result["description"] or "-")])
        return
    loads = result["last_load_seconds"] or {}
    failure = result["failure"] or {}
    pairs(
        [
            ("model", f"{result['id']}@{result['revision']}"),
            ("description", result["description"] or "-"),
            ("task", f"{result['task']} by {result['engine']}"),
            ("aliases", ", ".join(result["aliases"]) or "-"),
            ("state", f"{state(result)}, {'pinned' if result['pinned'] else 'not pinned'}"),
            ("memory", _bytes(result)),
            ("  weights", size(result["weights_bytes"])),
            ("  KV cache", size(result["kv_cache_bytes"])),
            ("context", f"{result['context_length']} tokens" if result["context_length"] else "-"),
            ("load takes", seconds(result["expected_load_seconds"])),
            ("wake takes", seconds(result["expected_wake_seconds"]) if result["can_sleep"] else "it does not sleep"),
            ("last load", ", ".join(f"{phase} {took:.2f} s" for phase, took in loads.items()) or "-"),
            ("loads", f"{result['loads']}, {result['wakes']} wakes, ended unexpectedly {result['deaths']} times"),
            ("last used", unless_hidden(result, ago(result["last_used"]))),
            ("requests", unless_hidden(result, f"{result['running']} running, {result['waiting']} waiting")),
            ("adapters", ", ".join(result["adapters"]) or "-"),
            ("problem", result["problem"] or failure.get("message") or "-"),
        ]
    )


def _victims(plan: Json) -> str:
    return ", ".join(
        f"{v['model']} ({size(v['bytes'])}, {v['running']} running, {v['action']})" for v in plan["victims"]
    )


def _room(room: Json) -> str:
    return f"{size(room['bytes_free'])} of {size(room['budget_bytes'])}"


def _free(plan: Json, rooms: list[Json]) -> list[tuple[str, str]]:
    """Return a row for each of several devices, or for the only one."""
    if len(rooms) > 1:
        return [(f"free on {room['device']}", _room(room)) for room in rooms]
    return [*(("device", room["device"]) for room in rooms), ("free", _room(plan))]


def _replica(plan: Json) -> str:
    """Format a replica's plan in one line."""
    devices = ", ".join(f"{room['device']} ({_room(room)} free)" for room in plan["devices"])
    victims = _victims(plan)
    return f"{plan['verdict']}: {devices or plan['why']}" + (f"; would evict: {victims}" if victims else "")


def _print_plan(result: Json) -> None:
    rooms = result["devices"]
    pairs(
        [
            ("model", result["model"]),
            ("verdict", result["verdict"]),
            ("why", result["why"]),
            ("needs", size(result["bytes_needed"]) + (" on each device" if len(rooms) > 1 else "")),
            *_free(result, rooms),
            *([("on the host", _on_host(result["host"]))] if result["host"] else []),
            ("would evict", _victims(result) or "none"),
            *((f"replica {one['number']}", _replica(one)) for one in result["replicas"]),
            ("takes about", seconds(result["expected_seconds"])),
        ]
    )


MODELS = Resource("/v1/models", _print_model)
