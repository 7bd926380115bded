"""`roundhouse validate`, `status`, `signal`, `version` and `doctor`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from runtime.cli.commands.models.manage import state
from runtime.cli.failures import translated_faults
from runtime.cli.local.keys import DataDir
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import ago, emit, note, size, table
from runtime.cli.remote.client import Json
from runtime.cli.remote.resource import print_answer

ENGINES = ("vllm", "vllm-cpu", "sentence-transformers", "faster-whisper", "torch", "litserve")


def validate(
    recipes: Annotated[list[Path], typer.Argument(help="Recipe files, or folders of them.", show_default=False)],
    sources: Annotated[
        bool, typer.Option("--sources", help="Also check that the files exist and fit the task.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check recipes without a server. Lists all faults at once, each with file, line and what to write instead.

    Example: roundhouse validate recipes/starter my-model.yaml
    """
    from launch.files.detect import misfit
    from models.flags import flag_fault
    from registry.recipes.loading import load_documents, remarks

    with translated_faults():
        documents = load_documents(recipes, check_sources=sources, misfit=misfit, flag_fault=flag_fault)
    result = documents.models
    provider_models = [(p, m) for p in documents.providers for m in p.models]
    warnings = (*documents.notes, *remarks(result))
    if as_json:
        providers = {"providers": [provider.id for provider in documents.providers]} if provider_models else {}
        ids = [recipe.id for recipe in result]
        emit({"object": "validation", "recipes": ids, **providers, "remarks": list(warnings)})
        return
    for remark in warnings:
        note(f"remark: {remark}")
    table(
        ["MODEL", "VERSION", "TASK", "ENGINE", "ADAPTERS"],
        [[r.id, str(r.version), r.task.value, r.engine.name, str(len(r.adapters))] for r in result]
        + [[p.served(m), str(p.version), m.task.value, p.base_url, "0"] for p, m in provider_models],
        right=["VERSION", "ADAPTERS"],
    )


def status(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show which models are loaded where, with bytes and last use.

    Example: watch roundhouse status
    """
    print_answer(url, as_json, _print_status, "GET", "/v1/status")


def _print_status(result: Json) -> None:
    device, slots = result["device"], result["slots"]
    print(
        f"{device['label']} ({device['name']}): "
        f"{size(device['resident_bytes'])} of {size(device['budget_bytes'])} used; "
        f"{slots['total'] - slots['free']} of {slots['total']} slots; {result['waiting']} requests waiting; "
        f"up for {result['uptime_seconds']:.0f} s"
    )
    if degraded := result["degraded"]:
        print(f"degraded: {', '.join(degraded)} (docs/monitor.md#what-does-not-work says what to do)")
    for fault in result["recipe_faults"]:
        print(f"faulty recipe, its former version counts: {fault}")
    devices = result["devices"]
    for part in devices if len(devices) > 1 else ():
        fault = f"; gone: {part['fault']}" if part["fault"] else ""
        print(
            f"  {part['name']} {part['label']}{' ' * bool(part['uuid'])}{part['uuid']}: "
            f"{size(part['resident_bytes'])} of {size(part['budget_bytes'])} used{fault}"
        )
    if host := result["host"]:
        print(f"host memory: {size(host['resident_bytes'])} of {size(host['budget_bytes'])} used")
    if warm := slots["prewarmed"]:
        print("pre-warmed slots: " + ", ".join(prewarmed(slot) for slot in warm))
    rows = []
    for model in result["models"]:
        held = size(model["bytes"]) if model["bytes"] else "-"
        busy = f"{model['running']}/{model['waiting']}"
        pinned = "yes" if model["pinned"] else ""
        where = ",".join(model["devices"]) if len(devices) > 1 and model["devices"] else model["tier"]
        row = [model["id"], state(model), where, held, pinned, busy, ago(model["last_used"])]
        rows.append([*row[:4], size(model["host_bytes"]) if model["host_bytes"] else "-", *row[4:]] if host else row)
        for one in model["replicas"]:
            cells = [f"  replica {one['number']}", one["state"], ",".join(one["devices"]) or "-", size(one["bytes"])]
            on_host = [size(one["host_bytes"])] if host else []
            rows.append([*cells, *on_host, "", f"{one['running']}/{one['waiting']}", ""])
    heads = ["MODEL", "STATE", "WHERE", "BYTES", *(["ON HOST"] if host else []), "PINNED", "RUN/WAIT", "LAST USED"]
    table(heads, rows, right=[head for head in ("BYTES", "ON HOST", "RUN/WAIT") if head in heads])


def signal(
    model: Annotated[str | None, typer.Argument(help="Only this model.", show_default="all")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show how many replicas each model needs, for autoscalers, and why.

    Example: roundhouse signal llama
    """
    print_answer(url, as_json, _print_signal, "GET", "/v1/signal", model=model)


def _print_signal(result: Json) -> None:
    rows = []
    for one in result["data"]:
        kv_use, rate = one["kv_cache_use"], one["replica_work_per_second"]
        waits = [f"{wait['predicted_wait_seconds']:.1f}/{wait['goal_seconds']:g}" for wait in one["classes"].values()]
        rows.append([
            one["model"], str(one["wanted_replicas"]), str(one["replicas"]), f"{one['waiting_work']:.0f}",
            f"{one['arriving_work_per_second']:.0f}", f"{rate:.0f}" if rate else "-", *waits,
            "-" if kv_use is None else f"{100 * kv_use:.0f}%", f"{one['lead_seconds']:.1f}",
        ])  # fmt: skip
    classes = [name.upper() for name in (result["data"][0]["classes"] if result["data"] else ())]
    heads = ["MODEL", "WANTED", "REPLICAS", "WAITING", "ARRIVING/s", "EACH DOES/s", *classes, "KV", "LEAD s"]
    table(heads, rows, right=heads[1:])


def prewarmed(slot: dict[str, Any]) -> str:
    """Describe a pre-warmed slot."""
    importing = ", importing" if slot["state"] == "importing" else ""
    return f"{slot['engine']} ({size(slot['bytes'])}{importing})"


def version(as_json: AsJson = False) -> None:
    """Print the versions of Roundhouse, Python and the engines.

    Example: roundhouse version --json
    """
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    result = {"roundhouse": installed("roundhouse"), "python": platform.python_version()}
    for name in ENGINES:
        try:
            result[name] = installed(name)
        except PackageNotFoundError:
            continue
    if as_json:
        emit(result)
    else:
        for name, number in result.items():
            print(f"{name} {number}")


def doctor(
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        typer.Option("--device", help="Device to run the server on; auto uses a GPU if there is one."),
    ] = "auto",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port for the server; 0 to check none.")] = 8000,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Check that this host has everything the server needs, and explain how to get what is missing.

    The exit code is 1 if something required is missing.

    Example: roundhouse doctor --device cuda
    """
    from runtime.cli.local.host import kind_of_host, needs
    from runtime.cli.local.options import settings_of

    kind = kind_of_host() if device == "auto" else device
    found = list(needs(kind, port, settings_of(data_dir=data_dir).data_dir))
    missing = [need for need in found if not need.met]
    if as_json:
        enough = all(need.optional for need in missing)
        emit({"object": "doctor", "device": kind, "ok": enough, "needs": [asdict(need) for need in found]})
    else:
        words = {True: "ok", False: "MISSING"}
        rows = [[n.name, "advised" if n.optional and not n.met else words[n.met], n.found] for n in found]
        table([f"FOR {kind.upper()}", "", "FOUND"], rows)
        for need in missing:
            note(f"{need.name}: {need.help}")
    if not all(need.optional for need in missing):
        raise typer.Exit(1)
