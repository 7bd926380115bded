"""`roundhouse serve`: check the settings, then run the server in the foreground."""

import difflib
import errno
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import typer

from registry.base.limits import NO_PROCESSES, is_out_of_processes
from runtime.cli.commands.server.options import given
from runtime.cli.failures import RefusedError, ServerError, UsageError, translated_faults
from runtime.cli.local.fleet import check_joining, check_settings
from runtime.cli.local.options import settings_of
from runtime.cli.local.processes import own_id, restart_with_id
from runtime.cli.options import AsJson
from runtime.cli.output import say
from runtime.config.memory import MOST_SLOTS, slots_that_fit

if TYPE_CHECKING:
    import socket
    import subprocess

    from registry.recipes.loading import Documents
    from runtime.config.device import Device
    from runtime.config.settings import Settings


def serve(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Start the server in the foreground. Ctrl-C or SIGTERM stops it after running requests have finished.

    Examples: roundhouse serve;
    roundhouse serve --port 9000 --recipes recipes/h200 --recipes my-model.yaml;
    ROUNDHOUSE_DEVICE_MEMORY=20GiB roundhouse serve --host 0.0.0.0
    """
    settings = settings_of(**given(ctx))  # reports wrong options before anything is started
    if own_id() is None:
        restart_with_id()
    from runtime.cli.local.data_dir import DataDirInUseError

    # Until `run` listens for it. By default the kernel would leave the record of the run behind, and not even stop the
    # first process of a container.
    signal.signal(signal.SIGTERM, _leave)
    try:
        code = _run(settings, as_json)
    except DataDirInUseError as error:
        if settings.fleet is None:
            raise
        raise UsageError(error.message) from None  # like everything that keeps a server out of its fleet
    except (BlockingIOError, RuntimeError) as error:
        if not is_out_of_processes(error):
            raise
        raise RefusedError(f"The server cannot start: {NO_PROCESSES}.") from None
    if code:
        raise ServerError("A process of the server ended unexpectedly. See its log.")


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _run(settings: "Settings", as_json: bool) -> int:
    """Lock the data directory, run the server, and return its exit code."""
    check_settings(settings)
    from runtime.cli.local.data_dir import DataDir

    read = read_recipes(settings)
    _check_oidc(settings)
    device, claimed = _claimed_device(settings)
    url = f"http://{_reachable(settings.host)}:{settings.port}"
    with (
        claimed,
        DataDir(settings.data_dir, url) as data_dir,
    ):  # first, because it also ends leftovers of a killed server, which may hold the port
        taken = _take_port(settings.host, settings.port, is_shared=settings.shared_port)
        os.register_at_fork(after_in_child=taken.close)
        update = {"data_dir": data_dir.path, "run_dir": data_dir.run_dir}
        slots = 0 if settings.front else _slots(settings, read, data_dir.path)
        most = slots if "slots" in settings.model_fields_set else MOST_SLOTS
        settings = settings.model_copy(update={**update, "slots": slots, "most_slots": most})
        if settings.fleet is not None:
            check_joining(settings)
        _check_access(settings)
        _check_versions(settings)
        _check_keys(settings)
        if os.environ.get("LIT_SERVER_API_KEY"):
            say(
                "warning: LIT_SERVER_API_KEY has no effect here. To require keys, use: roundhouse keys create.",
                logging.WARNING,
            )
        for name, meant in misspelt_variables(settings, os.environ):
            say(f"warning: {name} is not a setting and has no effect. Did you mean {meant}?", logging.WARNING)
        for secret in ("ROUNDHOUSE_PEPPER", "ROUNDHOUSE_DATABASE"):  # the settings have them
            os.environ.pop(secret, None)
        _say_start(settings, device, as_json)
        return _run_until_stopped(settings, read, device, taken, _announce(url, as_json))


def misspelt_variables(settings: "Settings", variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return variables that are almost one of a setting, each with that one."""
    prefix = settings.model_config["env_prefix"]
    known = {name.upper() for name in type(settings).model_fields}
    others = {variable.removeprefix(prefix) for variable in variables if variable.startswith(prefix)} - known
    close = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.85) for name in sorted(others)}
    return [(prefix + name, prefix + meant[0]) for name, meant in close.items() if meant]


def _say_start(settings: "Settings", device: "Device", as_json: bool) -> None:
    if settings.front:
        say(f"starting as a front of the fleet {settings.fleet}, data in {settings.data_dir}")
    elif not as_json:
        say(f"starting on {device.label} with {device.budget / 2**30:.1f} GiB for models, data in {settings.data_dir}")
        for part in device.parts:
            name = f"{part.label} {part.uuid}".rstrip()
            say(f"  {part.device}: {name} with {part.bytes / 2**30:.1f} GiB")


def _run_until_stopped(
    settings: "Settings",
    read: "Documents",
    device: "Device",
    taken: "socket.socket",
    announcer: "subprocess.Popen[bytes]",
) -> int:
    """Run the server, and return its exit code. taken: the port's reservation, which ends once the server listens."""

    def background() -> None:
        announcer.wait()  # it ends long before us; leaves no zombie
        taken.close()  # the server listens now; another one may take the port while this one drains

    try:
        if settings.front:
            from runtime.server.front import run_front

            code = run_front(settings, read, background)
        else:
            from registry.base.importing import fast_imports
            from runtime.config.secret_variables import take_secrets

            take_secrets(one.key_env for one in read.providers if one.key_env)
            with fast_imports():  # without garbage collection, a fifth faster
                from runtime.server.run import run

            code = run(settings, read, device, background=background)
    finally:
        taken.close()
        announcer.terminate()
        announcer.wait()
    from runtime.server.shutdown import log_stopped

    log_stopped()
    return code


def _claimed_device(settings: "Settings") -> "tuple[Device, ExitStack]":
    """Claim the devices to serve on; a front needs none. Raises RefusedError."""
    if settings.front:
        from runtime.config.device import NO_DEVICE

        return NO_DEVICE, ExitStack()
    from runtime.config.device import claim, detect

    try:
        device = detect(settings.device, settings.device_memory, settings.host_memory)
        return device, claim(device)
    except RuntimeError as error:
        raise RefusedError(str(error)) from None


def _slots(settings: "Settings", read: "Documents", data_dir: Path) -> int:
    """Return the number of slots: as set, or two more than models and replicas if there is a free GiB for each."""
    if "slots" in settings.model_fields_set:
        return settings.slots
    if settings.slots_at_start is not None:
        return settings.slots_at_start
    added = sum(1 for _ in (data_dir / "recipes").glob("*.yaml"))
    replicas = sum(recipe.replicas.most for recipe in read.models)
    slots = min(replicas + added + 2, slots_that_fit(), MOST_SLOTS)
    return max(settings.slots, slots)


def _check_access(settings: "Settings") -> None:
    """Raise RefusedError if other machines can reach the server and it has no key, unless it is meant to be open."""
    from runtime.cli.local.keys import open_keys_at

    place = settings.keys
    if place.loopback or place.sign_in:
        return
    where = f"{settings.host}:{settings.port}"
    if place.open:
        say(
            f"warning: with --open, anyone who can reach {where} may use its models without a key and, until the first "
            "key exists, do everything else, too.",
            logging.WARNING,
        )
        return
    if place.has_tables():
        with open_keys_at(place) as tables:
            now = time.time()
            if any(key.state(now) == "active" for key in tables.list_keys()):
                return
    raise RefusedError(
        f"Other machines can reach {where}, but there is no key yet. Create one with "
        f"`roundhouse keys create --data-dir {place.data_dir}`, let people sign in with "
        "--oidc, or accept everyone with --open."
    )


def _check_keys(settings: "Settings") -> None:
    """Raise RefusedError if the server had keys, and would now accept everybody because their database is lost."""
    place = settings.keys
    if (lost := place.lost_keys_error()) is None:
        return
    if place.has_tables():
        from runtime.cli.local.keys import open_keys_at

        with open_keys_at(place) as tables:
            if tables.list_keys():
                return
    raise RefusedError(lost.message, code=lost.code)


def _check_versions(settings: "Settings") -> None:
    """Raise UsageError for a database that is newer or cannot be used, RefusedError for one that cannot be reached."""
    from contextlib import closing

    from registry.base.importing import fast_imports
    from registry.errors import BadRequest, Conflict, Unavailable

    with fast_imports():
        from registry.state import database as state
        from registry.state import tables as state_tables
        from registry.storage.database import SQLITE, Database, driver_message, file_url, url_of
        from registry.storage.files import server_id
        from registry.storage.migration import refuse_newer
        from tenants import key_settings
        from tenants.storage import opening as tenants
        from tenants.storage import tables as tenants_tables

    folder = settings.data_dir.absolute()
    remote = settings.database if state.is_remote(settings.database) else None
    schema = f"roundhouse_{server_id(folder)}" if remote else None
    teams = url_of(settings.database) if settings.database else file_url(folder / key_settings.FILE)
    own = url_of(remote) if remote else file_url(folder / state.FILE)
    for url, within, scripts, table in (
        (own, schema, state.MIGRATIONS, state_tables.VERSION_TABLE),
        (teams, None, tenants.MIGRATIONS, tenants_tables.VERSION_TABLE),
    ):
        if url.drivername == SQLITE and not Path(url.database or "").is_file():
            continue
        try:
            with closing(Database(url, schema=within, read_only=True)) as database:
                refuse_newer(database, scripts, table)
        except (BadRequest, Conflict) as error:
            raise UsageError(error.message, code=error.code) from None
        except Unavailable as error:
            if url.drivername != SQLITE:  # what is wrong with a file is said when it is opened
                message = f"The server cannot start without its database, {url.render_as_string()}. {error.message}"
                raise RefusedError(" ".join(filter(None, (message, driver_message(error))))) from None


def _check_oidc(settings: "Settings") -> None:
    """Raise RefusedError if the file of --oidc cannot be used."""
    if settings.oidc is None:
        return
    from tenants.sign_in.settings import read_oidc

    with translated_faults():
        read_oidc(settings.oidc)


def read_recipes(settings: "Settings") -> "Documents":
    from registry.recipes.loading import load_documents

    with translated_faults():
        return load_documents(settings.recipes, may_be_empty=True)


def _reachable(host: str) -> str:
    """Return an address at which a client on this machine can reach the server."""
    result = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{result}]" if ":" in result else result


def _take_port(host: str, port: int, *, is_shared: bool = False) -> "socket.socket":
    """Reserve the port. Raises RefusedError if it is taken; LitServe would fail later and less clearly.

    LitServe binds the port seconds later. Until the returned socket is closed, its name in the kernel keeps other
    servers of this machine away. Fronts that share a port take no such name.
    """
    import socket

    reservation = socket.socket(socket.AF_UNIX)
    try:
        if not is_shared:
            reservation.bind(f"\0roundhouse-port-{port}")
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            tried.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise RefusedError(
                f"Port {port} on {host} is in use. Choose another with --port (make serve PORT=...)."
            ) from None
        raise RefusedError(f"Cannot listen on {host}:{port}: {error.strerror}. See --host.") from None
    return reservation


def _announce(url: str, as_json: bool) -> "subprocess.Popen[bytes]":
    """Start a process that shows the progress of the start and prints sample requests.

    Not a thread, because LitServe forks.
    """
    import subprocess

    command = [sys.executable, "-P", "-m", "runtime.cli.local.announce", url, str(os.getpid())]
    return subprocess.Popen([*command, "--json"] if as_json else command)
