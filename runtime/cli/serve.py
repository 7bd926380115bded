"""`roundhouse serve`: one option per field of runtime.server.settings.Settings, then the server in the foreground."""

import errno
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.data_dir import DataDir, default_data_dir
from runtime.cli.failures import Refused, ServerFailed, Usage
from runtime.cli.options import AsJson, root
from runtime.cli.output import note
from runtime.cli.processes import own_id, restart_with_id

if TYPE_CHECKING:
    import subprocess

    from registry.recipe import Recipe
    from runtime.server.settings import Settings

STARTER = "recipes/starter"


class DeviceKind(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _option(name: str, help: str, panel: str, **more: Any) -> Any:
    """An option and its ROUNDHOUSE_ variable."""
    variable = "ROUNDHOUSE_" + name.lstrip("-").split("/")[0].replace("-", "_").upper()
    return typer.Option(name, envvar=variable, help=help, rich_help_panel=panel, **more)


WHERE, MEMORY, BOUNDS, TIMES = "Where", "Models and memory", "Bounds", "Times, in seconds"


def serve(
    recipes: Annotated[
        list[Path] | None,
        _option("--recipes", "Recipe file or folder; may be given more than once.  [default: the starter set]", WHERE,
                show_default=False),
    ] = None,
    host: Annotated[str, _option("--host", "Address to listen on; 0.0.0.0 for all.", WHERE)] = "127.0.0.1",
    port: Annotated[int, _option("--port", "Port to listen on.", WHERE, min=1024, max=65535)] = 8000,
    data_dir: Annotated[
        Path | None,
        _option("--data-dir", "What survives a restart: adapters, aliases, pins.  [default: ./.data in a checkout, "
                "else ~/.local/share/roundhouse]", WHERE, show_default=False),
    ] = None,
    log_level: Annotated[LogLevel, _option("--log-level", "Of the JSON log on standard error.", WHERE)] = LogLevel.INFO,
    device: Annotated[DeviceKind, _option("--device", "auto: the first GPU, else the CPU.", MEMORY)] = DeviceKind.AUTO,
    device_memory: Annotated[
        str | None,
        _option("--device-memory", "Budget for all models, such as 20GiB.  [default: 85 % of what is there]", MEMORY,
                show_default=False),
    ] = None,
    host_memory: Annotated[
        str | None,
        _option("--host-memory", "Beside a GPU: budget in host memory, for sleeping models too.  [default: 85 % of "
                "what is there]", MEMORY, show_default=False),
    ] = None,
    slots: Annotated[int, _option("--slots", "How many models can be in memory at once.", MEMORY, min=1, max=64)] = 6,
    prewarm: Annotated[
        bool, _option("--prewarm/--no-prewarm", "Import engine libraries ahead of need: faster loads.", MEMORY)
    ] = True,
    max_waiting: Annotated[int, _option("--max-waiting", "Requests that may wait, then 429.", BOUNDS, min=1)] = 2048,
    max_json: Annotated[str, _option("--max-json", "Largest JSON body.", BOUNDS)] = "4MiB",
    max_audio: Annotated[str, _option("--max-audio", "Largest recording.", BOUNDS)] = "32MiB",
    max_adapter: Annotated[str, _option("--max-adapter", "Largest adapter archive.", BOUNDS)] = "2GiB",
    max_audio_seconds: Annotated[
        float, _option("--max-audio-seconds", "Longest recording, in seconds.", BOUNDS)
    ] = 14400.0,
    drain_seconds: Annotated[
        float, _option("--drain-seconds", "How long running requests may go on after Ctrl-C or SIGTERM.", TIMES, min=0)
    ] = 60.0,
    patience: Annotated[
        float, _option("--patience", "How long a waiting model lets busy ones go on, then one goes.", TIMES, min=0)
    ] = 1.0,
    heartbeat: Annotated[float, _option("--heartbeat", "How often engines are asked if they live.", TIMES)] = 5.0,
    hung_after: Annotated[
        float, _option("--hung-after", "An engine that is silent for so long is restarted.", TIMES)
    ] = 30.0,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Start the server and stay in the foreground. Ctrl-C or SIGTERM lets running requests finish and stops it.

    Examples: roundhouse serve;
    roundhouse serve --port 9000 --recipes recipes/h200 --recipes my-model.yaml;
    ROUNDHOUSE_DEVICE_MEMORY=20GiB roundhouse serve --host 0.0.0.0
    """
    given = {
        "recipes": tuple(recipes or [_starter()]), "host": host, "port": port, "device": device.value,
        "device_memory": device_memory, "host_memory": host_memory, "slots": slots, "prewarm": prewarm,
        "max_waiting": max_waiting,
        "max_json": max_json, "max_audio": max_audio, "max_adapter": max_adapter,
        "max_audio_seconds": max_audio_seconds, "drain_seconds": drain_seconds, "patience": patience,
        "heartbeat": heartbeat, "hung_after": hung_after, "log_level": log_level.value,
    }  # fmt: skip
    folder = data_dir or default_data_dir()
    if own_id() is None:
        _settings(given, folder, Path("/unused"))  # wrong options are told before anything is started
        restart_with_id()
    code = _run(given, folder, as_json)
    if code:
        raise ServerFailed("The server's own process ended unexpectedly. Its log tells why.")


def _run(given: dict[str, Any], folder: Path, as_json: bool) -> int:
    """Everything from the lock to the end; the exit code of the server."""
    settings = _settings(given, folder, Path("/unused"))
    read = _read_recipes(settings)
    from runtime.server.device import detect

    try:
        device = detect(settings.device, settings.device_memory, settings.host_memory)
    except RuntimeError as error:
        raise Refused(str(error)) from None
    url = f"http://{_reachable(settings.host)}:{settings.port}"
    with DataDir(folder, url) as held:  # first: it also ends what a killed server left, which may hold the port
        _port_is_free(settings.host, settings.port)
        settings = settings.model_copy(update={"data_dir": held.path, "run_dir": held.run_dir})
        if _reachable(settings.host) != settings.host or settings.host not in ("127.0.0.1", "localhost", "::1"):
            note(f"warning: whoever can reach {settings.host}:{settings.port} can use this server: it asks for no key.")
        if not as_json:
            note(f"starting on {device.label} with {device.budget / 2**30:.1f} GiB for models, data in {held.path}")
        announcer = _announce(url, as_json)
        try:
            from runtime.server.run import run  # the heavy import: LitServe, FastAPI, pydantic

            return run(settings, read, device, beside=announcer.wait)  # it ends long before us: no zombie stays
        finally:
            announcer.terminate()
            announcer.wait()


def _settings(given: dict[str, Any], data_dir: Path, run_dir: Path) -> "Settings":
    """Raises Usage that names the option."""
    from pydantic import ValidationError

    from runtime.server.settings import Settings

    try:
        return Settings.model_validate({**given, "data_dir": data_dir, "run_dir": run_dir})
    except ValidationError as error:
        wrong = [f"--{str(e['loc'][0]).replace('_', '-')}: {e['msg']}" for e in error.errors()]
        raise Usage(f"Wrong option: {'; '.join(wrong)}.") from None


def _read_recipes(settings: "Settings") -> "tuple[Recipe, ...]":
    from registry.errors import Unfit
    from registry.loading import load_recipes

    try:
        return load_recipes(settings.recipes)
    except Unfit as unfit:
        raise Refused(unfit.message, faults=unfit.faults, code=unfit.code) from None


def _starter() -> Path:
    here = Path(STARTER)
    return here if here.is_dir() else root() / STARTER


def _reachable(host: str) -> str:
    """An address that a client on this machine can call."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)


def _port_is_free(host: str, port: int) -> None:
    """Raises Refused before anything is started; LitServe would fail later and less clearly."""
    import socket

    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refused(
                f"Port {port} on {host} is in use. Choose another with --port (make serve PORT=...)."
            ) from None
        raise Refused(f"{host}:{port} cannot be listened on: {error.strerror}. See --host.") from None


def _announce(url: str, as_json: bool) -> "subprocess.Popen[bytes]":
    """A process that draws the start and prints what to try. A thread would be in the way: LitServe forks."""
    import subprocess

    command = [sys.executable, "-m", "runtime.cli.announce", url, str(os.getpid())]
    return subprocess.Popen([*command, "--json"] if as_json else command)
