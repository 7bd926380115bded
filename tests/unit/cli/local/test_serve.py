"""`roundhouse serve` without engines: options, refusals, the data directory, and the announcement."""

import errno
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from pydantic import ByteSize

from models import nvml
from registry.bounds import Bounds
from registry.recipes.loading import load_documents
from registry.state.database import State
from registry.state.tables import VERSION_TABLE as STATE_VERSION
from registry.storage.database import Database, url_of
from registry.storage.files import server_id
from runtime.cli.commands.server.options import options
from runtime.cli.commands.server.serve import (
    _check_keys,
    _check_versions,
    _reachable,
    _slots,
    _take_port,
    misspelt_variables,
)
from runtime.cli.failures import RefusedError, UsageError
from runtime.cli.local import announce, processes
from runtime.cli.local.announce import sample_requests
from runtime.cli.local.data_dir import DataDir
from runtime.cli.local.host import _data_dir
from runtime.cli.options import root
from runtime.config import device
from runtime.config.settings import SCALED, Settings, starter_recipes
from runtime.server.front import _shared_socket
from tenants.key_settings import HAD_KEYS
from tenants.storage.opening import open_tables
from tenants.storage.tables import VERSION_TABLE as TENANTS_VERSION
from tests.eventually import eventually
from tests.system.serving import free_port
from tests.unit.cli.conftest import Run, model
from tests.unit.cli.fake_server import Answer, FakeServer, ReceivedRequest

OPTIONS = {option.name: option for option in options()}
OTHER = {
    "recipes": "a.yaml", "host": "0.0.0.0", "port": "9000", "data_dir": "elsewhere", "log_level": "debug",
    "device": "cpu", "device_memory": "1GiB", "host_memory": "2GiB", "working_margin": "2GiB", "slots": "3",
    "prewarm": "false", "watch": "true", "trust_clients": "true",
    "currency": "EUR", "machine_price": "2.5", "cold_starts": "pot", "provider_prices": "prices.yaml",
    "max_waiting": "7", "max_json": "1MiB", "max_audio": "2MiB", "max_adapter": "3MiB",
    "max_file": "4MiB", "public_url": "https://models.example/ai", "files_disk": "7MiB",
    "callback_networks": "10.1.0.0/16",
    "max_bodies": "5MiB", "disk_reserve": "6MiB",
    "max_audio_seconds": "5",
    "allowed_hosts": "here.example", "cors_origins": "https://a.example", "adapter_roots": "adapters",
    "drain_seconds": "6", "hung_after": "9", "bounds_factor": "2",
    "database": "sqlite:///other.db", "open": "true", "store_responses": "24", "oidc": "oidc.yaml",
    "bounds": "tools=7",
    "fleet": "here", "front": "true", "shared_port": "true", "fleet_listen": "10.0.0.5:8443", "fleet_address": "https://10.0.0.5:8443",
    "fleet_certificates": "certificates", "fleet_key": "fleet.key", "fleet_name": "node-1",
}  # fmt: skip
"""A value other than the default for each setting."""

UNWRITTEN = (
    "recipes",
    "device_memory",
    "host_memory",
    "allowed_hosts",
    "callback_networks",
    "cors_origins",
    "adapter_roots",
    "database",
    "disk_reserve",
    "bounds",
    "oidc",
    "provider_prices",
    "public_url",
    "fleet",
    "fleet_listen",
    "fleet_address",
    "fleet_certificates",
    "fleet_key",
    "fleet_name",
)
FIXED = {"heartbeat", "min_rate", "patience", *SCALED}
HIDDEN = {"run_dir", "most_slots", "slots_at_start", "pepper", "slot_spin", *FIXED}
"""Settings without an option. The command line sets the first two, and tests the third. The fourth is a secret, and
other users can read options. The fifth is a variable for measurements. The rest are fixed, or follow other settings.
"""


def settings_of(monkeypatch: pytest.MonkeyPatch, run: Run, *arguments: str) -> Settings:
    """Return the settings with which `serve` would start."""
    found: list[Settings] = []
    monkeypatch.setattr("runtime.cli.commands.server.serve.own_id", lambda: "1-test")
    monkeypatch.setattr("runtime.cli.commands.server.serve._run", lambda settings, _: found.append(settings))
    result = run("serve", *arguments)
    assert result.exit_code == 0, result.stderr
    return found[0]


@pytest.mark.parametrize("name", sorted(set(Settings.model_fields) - HIDDEN))
def test_every_setting_is_an_option_and_a_variable(name: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    default = getattr(settings_of(monkeypatch, run), name)
    option = OPTIONS[name]
    names = (option.opts[0], option.secondary_opts[0]) if option.secondary_opts else ()
    value = [names[bool(default)]] if names else [option.opts[0], OTHER[name]]
    found = getattr(settings_of(monkeypatch, run, *value), name)
    assert found != default
    monkeypatch.setenv(option.envvar, OTHER[name])
    assert getattr(settings_of(monkeypatch, run), name) == found
    back = names[not default] if names else f"{option.opts[0]}={default}"
    if name not in UNWRITTEN:  # settings whose defaults cannot be written
        assert getattr(settings_of(monkeypatch, run, back), name) == default, "the option wins"


@pytest.mark.parametrize(
    ("option", "value", "stated"),
    [
        ("device", "gpu", "--device cannot be 'gpu'; write auto, cpu, cpu:2, cuda, or cuda: with the UUIDs that"),
        ("device-memory", "lots", "--device-memory cannot be 'lots'; write a size such as 512MiB or 4GB."),
        ("fleet-listen", "127.0.0.1:99999", "--fleet-listen: 127.0.0.1:99999 has no valid port: write a number from 1"),
        ("fleet-address", "https://[::1]:70000", "--fleet-address: https://[::1]:70000 has no valid port: write a"),
        ("max-json", "-1", "--max-json cannot be '-1'; write a size such as 512MiB or 4GB."),
        ("currency", "eur", "--currency cannot be 'eur'; write three capital letters, such as EUR."),
        ("fleet-listen", "8443", "--fleet-listen cannot be '8443'; write HOST:PORT, such as 0.0.0.0:8443."),
        ("cors-origins", "x", "--cors-origins: x is not a valid origin: write scheme and host"),
        ("cors-origins", "https://*.x", "--cors-origins: https://*.x would match no origin: name each one, or"),
        ("allowed-hosts", "*.x", "--allowed-hosts: *.x would match no host: name each one, or accept any with *"),
        (
            "database",
            "postgres://u@h/d",
            "--database: A database cannot be 'postgres'. Write postgresql+psycopg://user@",
        ),
        ("database", "nonsense", "--database: This is not the address of a database. Write postgresql+psycopg://user@"),
        ("database", "postgresql+psycopg://u@h:x/d", "--database: This is not the address of a database. Write"),
        ("max-audio-seconds", "nan", "--max-audio-seconds"),
        ("bounds-factor", "-1", "; write more than 0.0."),
    ],
)
def test_a_wrong_value_says_what_to_write(
    option: str, value: str, stated: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, variable in (([f"--{option}={value}"], ""), ([], value)):
        monkeypatch.setenv(f"ROUNDHOUSE_{option.upper().replace('-', '_')}", variable)
        result = run("serve", *given)
        assert result.exit_code == 2
        assert stated in result.stderr
        assert "--max-headers" not in result.stderr, "a value that follows from the factor is not named"


@pytest.mark.parametrize(("added", "free", "slots"), [(0, 64, 6), (9, 64, 15), (9, 12, 12), (9, 2, 6), (90, 640, 64)])
def test_slots_grow_with_the_models_where_memory_allows(
    added: int, free: int, slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two more than there are models, also counting those added at run time. free: GiB."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free << 30))
    (tmp_path / "recipes").mkdir()
    for number in range(added):
        (tmp_path / "recipes" / f"{number}.yaml").touch()
    documents = load_documents(starter_recipes())
    assert len(documents.models) == 4
    assert _slots(Settings(recipes=(), run_dir=tmp_path), documents, tmp_path) == slots
    assert _slots(Settings(recipes=(), run_dir=tmp_path, slots=3), documents, tmp_path) == 3
    assert _slots(Settings(recipes=(), run_dir=tmp_path, slots_at_start=1), documents, tmp_path) == 1


def test_a_variable_holds_several_recipes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_RECIPES", "a.yaml:folder")
    assert settings_of(monkeypatch, run).recipes == (Path("a.yaml"), Path("folder"))


def test_a_home_folder_that_no_shell_has_replaced_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROUNDHOUSE_RECIPES", "a.yaml:~/folder")
    settings = settings_of(monkeypatch, run, "--data-dir=~/data")
    assert settings.recipes == (Path("a.yaml"), tmp_path / "folder")
    assert settings.data_dir == tmp_path / "data"
    refused = run("serve", "--data-dir", "~no-such-user/data")
    assert refused.exit_code == 2
    assert "write the whole path" in refused.stderr


def test_a_variable_holds_several_hosts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_ALLOWED_HOSTS", "a.example, b.example")
    assert settings_of(monkeypatch, run).allowed_hosts == ("a.example", "b.example")


def test_hosts_with_commas_are_several_on_the_command_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--allowed-hosts", "a.example,b.example", "--allowed-hosts", "c.example", "--cors-origins", "*"]
    assert settings_of(monkeypatch, run, *given).allowed_hosts == ("a.example", "b.example", "c.example")


@pytest.mark.parametrize(
    "given",
    [
        ("--allowed-hosts", "https://a.example"),
        ("--cors-origins", "a.example"),
        ("--cors-origins", "https://a.example/page"),
        ("--device-memory", "0"),
        ("--drain-seconds", "inf"),
    ],
    ids=" ".join,
)
def test_settings_that_contradict_each_other_are_refused_at_once(run: Run, given: tuple[str, str]) -> None:
    result = run("serve", *given)
    assert result.exit_code == 2
    assert given[0] in result.stderr


def test_a_host_memory_of_0_is_not_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "gpus", lambda: (nvml.Gpu("card", "GPU-1", 100, 0),))
    assert device.detect("cuda", 50, 0).host_budget == 0
    assert device.detect("cuda", 50).host_budget > 0


@pytest.mark.parametrize(
    ("host", "called"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("2001:db8::5", "[2001:db8::5]"), ("gpu.lan", "gpu.lan")],
)  # fmt: skip
def test_the_address_at_which_a_server_is_reached(host: str, called: str) -> None:
    assert _reachable(host) == called


def test_the_starter_recipes_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert starter_recipes()[0].is_dir()


def test_several_bounds_can_be_set_by_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_BOUNDS", "tools=7, grammar_bytes=1MiB")
    assert settings_of(monkeypatch, run).bounds == Bounds(tools=7, grammar_bytes=ByteSize(2**20))
    given = settings_of(monkeypatch, run, "--bounds", "tools=2", "--bounds", "compile_seconds=0.5").bounds
    assert given == Bounds(tools=2, compile_seconds=0.5), "the option wins"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tols=7", "tols is not a bound"),
        ("tools", "--bounds tools"),
        ("tools=0", "write more than 0"),
        ("nesting=65", "nesting can only be set by --bounds-factor"),
        ("compile_seconds=inf", "finite number"),
        ("grammar_bytes=much", "--bounds grammar_bytes"),
    ],
)
def test_an_unknown_bound_is_refused(run: Run, given: str, message: str) -> None:
    result = run("serve", "--bounds", given)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_a_factor_scales_all_bounds_that_are_not_set(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch, run, "--bounds-factor", "2", "--bounds", "tools=7")
    assert (settings.bounds.tools, settings.bounds.stops, settings.bounds.nesting) == (7, 128, 64)
    assert (settings.max_headers, settings.header_seconds) == (128 << 10, 20.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Qwen/Qwen3-0.6B", "--port", "8000"], "roundhouse models add Qwen/Qwen3-0.6B"),
        (
            ["--max-model-len", "4096"],
            "serve has no --max-model-len: write it as context_length in the model's recipe.",
        ),
        (["--tool-call-parser=hermes"], "serve has no --tool-call-parser: write it below engine.flags in the model's"),
        (["--no-enable-prefix-caching"], "write it below engine.flags"),
        (["--api-key", "x"], "serve has no --api-key: use roundhouse keys create."),
        (
            ["--ssl-keyfile", "x"],
            "serve has no --ssl-keyfile: leave it out, as no recipe takes it either: docs/migrate.md",
        ),
        (["--disable-log-requests"], "serve has no --disable-log-requests: leave it out."),
        (["--rope-scaling", "{}"], "serve has no --rope-scaling: write hf_overrides below engine.flags in the model's"),
        (["--nonsense"], "No such option: --nonsense"),
    ],
)
def test_words_of_vllm_serve_get_advice(run: Run, arguments: list[str], words: str) -> None:
    result = run("serve", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_a_wrong_variable_is_named_by_its_option(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_MAX_JSON", "many")
    result = run("serve")
    assert result.exit_code == 2
    assert "--max-json" in result.stderr


def test_a_variable_that_is_almost_a_settings_is_found(tmp_path: Path) -> None:
    """It had no effect, without a word."""
    settings = Settings(run_dir=tmp_path)
    of_kubernetes = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "8000", "PORT_8000_TCP_ADDR": "10.0.0.1"}
    others = {
        "API_KEY": "k",
        "URL": "http://here",
        "OIDC_SECRET": "s",
        "SLOT_SPIN": "0",
        "PORT": "8000",
        **of_kubernetes,
    }
    variables = {f"ROUNDHOUSE_{name}": value for name, value in others.items()}
    assert misspelt_variables(settings, variables) == []
    wrong = {"ROUNDHOUSE_ALLOWED_HOST": "here.example", "ROUNDHOUSE_DATADIR": "/data", "ROUNDHOUSE_DEVICE_MEM": "1GiB"}
    assert misspelt_variables(settings, variables | wrong) == [
        ("ROUNDHOUSE_ALLOWED_HOST", "ROUNDHOUSE_ALLOWED_HOSTS"),
        ("ROUNDHOUSE_DATADIR", "ROUNDHOUSE_DATA_DIR"),
        ("ROUNDHOUSE_DEVICE_MEM", "ROUNDHOUSE_DEVICE_MEMORY"),
    ]


def serve(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run `serve` in another process, which it replaces to carry its run id, on a port that nothing else has."""
    command = [sys.executable, "-m", "runtime.cli.main", "serve", *arguments]
    variables = {**os.environ, "ROUNDHOUSE_PORT": str(free_port()), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=variables, cwd=root())


def test_wrong_recipes_are_reported_and_nothing_starts(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("id: m\n")
    done = serve("--recipes", str(file), "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 1
    assert "bad.yaml:1" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_pepper_is_set_only_by_a_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_PEPPER", "p" * 40)
    settings = settings_of(monkeypatch, run)
    assert settings.keys.pepper == "p" * 40
    assert "p" * 40 not in repr(settings)


@pytest.mark.parametrize("keys", [(), ("--expires", "1s")])
def test_a_server_that_other_machines_can_reach_needs_a_key(tmp_path: Path, keys: tuple[str, ...], run: Run) -> None:
    """An expired key does not count."""
    if keys:
        assert run("keys", "create", "--data-dir", str(tmp_path), *keys).exit_code == 0
        listed = ("keys", "list", "--data-dir", str(tmp_path), "--json")
        eventually(lambda: json.loads(run(*listed).stdout)["data"][0]["state"] == "expired")
    done = serve("--host", "0.0.0.0", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert "there is no key yet" in done.stderr
    assert "roundhouse keys create" in done.stderr
    assert "--open" in done.stderr
    assert not (tmp_path / "server.json").exists()


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_server_that_lost_its_keys_is_refused(tmp_path: Path, is_empty: bool, run: Run) -> None:
    """On loopback it would accept everybody."""
    (tmp_path / HAD_KEYS).touch()
    settings = Settings(data_dir=tmp_path, run_dir=tmp_path)
    if is_empty:
        open_tables(tmp_path).close()
    with pytest.raises(RefusedError, match="roundhouse restore") as refused:
        _check_keys(settings)
    assert refused.value.code == "keys_lost"
    assert run("keys", "create", "--data-dir", str(tmp_path)).exit_code == 0
    _check_keys(settings)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve("--data-dir", str(tmp_path), ROUNDHOUSE_PORT=str(port))
    assert done.returncode == 1
    assert f"Port {port} on 127.0.0.1 is in use" in done.stderr
    assert not (tmp_path / "server.json").exists()


def test_an_empty_variable_means_the_default(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("id: m\n")
    done = serve("--recipes", str(file), ROUNDHOUSE_PORT="", ROUNDHOUSE_LOG_LEVEL="", ROUNDHOUSE_PREWARM="")
    assert done.returncode == 1, done.stderr
    assert "bad.yaml:1" in done.stderr


@pytest.mark.parametrize("size", ["many", "1,5GiB", "50%", "4GiB/2"])
def test_a_malformed_size_is_refused(run: Run, size: str) -> None:
    result = run("serve", "--max-json", size)
    assert result.exit_code == 2
    assert f"--max-json cannot be '{size}'; write a size such as 512MiB or 4GB" in result.stderr


def holder(tmp_path: Path) -> "subprocess.Popen[str]":
    """A process that uses the data directory, with a child that has given the lock up and outlives it."""
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from runtime.cli.local import processes\n"
        "from runtime.cli.local.data_dir import DataDir\n"
        "if processes.own_id() is None: processes.restart_with_id()\n"
        f"with DataDir(Path({str(tmp_path)!r}), 'http://x'):\n"
        "    if os.fork() == 0: print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    script = tmp_path / "holder.py"
    script.write_text(code)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=root())
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_two_servers_cannot_share_a_data_directory(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with (
            pytest.raises(RefusedError, match=f"in use by the server at http://x .process {process.pid}"),
            DataDir(tmp_path, "http://y"),
        ):
            pass
    finally:
        process.terminate()
        process.wait()
        processes.sweep(json.loads((tmp_path / "server.json").read_text())["id"])


def test_a_data_directory_on_a_full_disk_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message used to be only 'No space left on device.'"""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    monkeypatch.setattr("runtime.cli.local.data_dir.make_run_dir", lambda: run_dir)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with (
            pytest.raises(RefusedError, match=f"{tmp_path}/data cannot be used: No space left"),
            DataDir(tmp_path / "data", "http://x"),
        ):
            pass
    assert not run_dir.exists()
    with DataDir(tmp_path / "data", "http://x"):
        pass


@pytest.mark.parametrize("path", ["link", "link/data"])
def test_a_link_to_a_disk_that_is_not_mounted_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "mnt")
    cause = f"{tmp_path}/{path} cannot be used: {tmp_path}/link is a file, or a link to a folder that is missing"
    with pytest.raises(RefusedError, match=cause), DataDir(tmp_path / path, "http://x"):
        pass
    assert not _data_dir(tmp_path / path).met


def test_a_stop_on_a_disk_that_has_become_read_only_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, DataDir(tmp_path, "http://x") as held:
        patched.setattr(Path, "unlink", full)
    assert not held.run_dir.exists()
    with DataDir(tmp_path, "http://y"):  # it is no longer in use
        pass


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_only_processes_left_by_a_killed_server_are_ended(tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = holder(tmp_path)
    record = json.loads((tmp_path / "server.json").read_text())
    assert Path(record["run_dir"]).is_dir()
    process.kill()
    process.wait()
    eventually(lambda: len(processes.members(record["id"])) == 1)
    with DataDir(tmp_path, "http://y") as held:
        eventually(lambda: processes.members(record["id"]) == set())
        assert not Path(record["run_dir"]).exists()
        assert held.run_dir.is_dir()
        assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert not held.run_dir.exists()
    assert not (tmp_path / "server.json").exists()


def test_a_descendant_with_another_environment_is_found(tmp_path: Path) -> None:
    run = f"{os.getpid()}-test"
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={})\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, processes.VARIABLE: run}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    parent.stdout.readline()
    assert len(processes.members(run)) == 2
    assert processes.sweep(run) == 2
    parent.wait()


MODELS = [
    model(),
    model("starter-embed", task="embed", adapters=[]),
    model("starter-rerank", task="rerank", adapters=[]),
    model("starter-speech", task="transcribe", adapters=[]),
]


def test_the_announcement_has_a_request_for_each_task() -> None:
    found = sample_requests("http://127.0.0.1:8000", MODELS)
    assert len(found) == 4
    assert "uppercase" in found[0][0]
    for _, command in found:
        assert command.startswith("curl -s http://127.0.0.1:8000/v1/")
        assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    for _, command in found[:3]:
        json.loads(command.partition("-d '")[2].removesuffix("'"))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "is_for_people", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_the_announcement_waits_for_loads(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    def ready(_: ReceivedRequest) -> Answer:
        early = len(server.received) < 3
        return Answer({"status": "starting"}, 503) if early else Answer({"status": "ready", "faults": {"m:a": "unfit"}})

    def models(_: ReceivedRequest) -> Answer:
        progress = {"phase": "weights", "percent": 50.0, "detail": ""}
        early = len(server.received) < 6
        loading = model(state="loading", progress=progress) if early else model()
        return Answer({"data": [loading, *MODELS[1:]]})

    server.on("GET", "/health/ready", ready)
    server.on("GET", "/v1/models", models)
    assert announce.main([server.url, str(os.getppid())]) == 0
    message = capsys.readouterr()
    assert f"{server.url}/v1/audio/transcriptions" in message.out
    assert "warning: adapter m:a was refused: unfit" in message.err
    assert announce.main([server.url, str(os.getppid()), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"]["starter-chat"] == "ready"


@pytest.mark.usefixtures("terminal")
def test_the_announcement_without_a_key_does_not_say_that_there_is_no_model(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("GET", "/health/ready", Answer({"status": "ready", "faults": {}}))
    server.on("GET", "/v1/models", Answer({"error": {"message": "No key was sent.", "code": "no_key"}}, 401))
    assert announce.main([server.url, str(os.getppid())]) == 0
    message = capsys.readouterr()
    assert "No key was sent. Commands read it from the variable ROUNDHOUSE_API_KEY." in message.err
    assert "Roundhouse is ready" in message.out
    assert "no model" not in message.out


@pytest.mark.usefixtures("terminal")
def test_only_a_server_without_models_suggests_adding_one(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server has models if they are at providers, and may have some if we have no key for it."""
    server.on("GET", "/health/ready", lambda _: Answer({"status": "ready"}))
    other_place = {"id": "there/big", "object": "model", "owned_by": "there"}
    refused = Answer({"error": {"message": "A key is needed.", "code": "invalid_api_key"}}, 401)
    for answer, is_reported in (
        (Answer({"data": []}), True),
        (Answer({"data": [other_place]}), False),
        (refused, False),
    ):
        server.on("GET", "/v1/models", lambda _, answer=answer: answer)  # type: ignore[misc]
        assert announce.main([server.url, str(os.getppid())]) == 0
        assert ("There is no model yet" in capsys.readouterr().out) is is_reported


def test_without_a_terminal_the_announcement_is_a_line_in_the_log(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("GET", "/health/ready", Answer({"status": "ready", "faults": {"m:a": "unfit"}}))
    server.on("GET", "/v1/models", Answer({"data": MODELS}))
    assert announce.main([server.url, str(os.getppid())]) == 0
    message = capsys.readouterr()
    lines = [json.loads(line) for line in message.err.splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning", "info"]
    assert lines[-1]["console"] == f"{server.url}/console"
    assert message.out == ""


def test_the_announcement_ends_with_its_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert announce.main(["http://127.0.0.1:9", "1" if os.getppid() != 1 else "2"]) == 0
    assert capsys.readouterr().out == ""


def test_only_its_user_may_read_the_data_directory(tmp_path: Path) -> None:
    """Also if an earlier release left it readable for others."""
    tmp_path.chmod(0o755)
    (tmp_path / "server.json").write_text("{")
    (tmp_path / "server.json").chmod(0o644)
    with DataDir(tmp_path, "http://x"):
        assert tmp_path.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "server.json").stat().st_mode & 0o777 == 0o600
        assert json.loads((tmp_path / "server.json").read_text())["url"] == "http://x"


def test_the_second_of_two_simultaneous_starts_on_one_port_is_refused() -> None:
    """The first one listens only seconds later, and the second would take its answers for its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with _take_port("127.0.0.1", port), pytest.raises(RefusedError, match=f"Port {port} on 127.0.0.1 is in use"):
        _take_port("127.0.0.1", port)
    _take_port("127.0.0.1", port).close()


def test_fronts_share_a_port_only_with_each_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RefusedError, match="is in use"):
            _take_port("127.0.0.1", port, is_shared=True)
    with _shared_socket("127.0.0.1", port) as front, _shared_socket("127.0.0.1", port) as other:
        front.listen()
        other.listen()
        _take_port("127.0.0.1", port, is_shared=True).close()
        with pytest.raises(RefusedError, match="is in use"):
            _take_port("127.0.0.1", port)


def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "runtime.cli.entry",
        "serve",
        "--data-dir",
        str(tmp_path),
        "--port",
        f"{free_port()}",
    ]
    with subprocess.Popen(command, cwd=root(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        eventually(lambda: (tmp_path / "server.json").is_file() and (tmp_path / "server.json").stat().st_size > 0)
        run_dir = Path(json.loads((tmp_path / "server.json").read_text())["run_dir"])
        process.terminate()
        assert process.wait() == 0
    assert not run_dir.exists()
    assert not (tmp_path / "server.json").exists()


def test_closed_standard_streams_are_opened() -> None:
    """Some service managers close them, and the next opened files would get their numbers."""
    code = (
        "import os, sys\n"
        "from runtime.cli.local import processes\n"
        "if processes.own_id() is None: processes.restart_with_id()\n"
        "told = [os.readlink(f'/proc/self/fd/{number}') for number in range(3)]\n"
        "open(sys.argv[1], 'w').write(' '.join(told))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        script, message = Path(folder, "script.py"), Path(folder, "message")
        script.write_text(code)
        closed = f"exec {sys.executable} {script} {message} 0<&- 1>&- 2>&-"
        subprocess.run(["sh", "-c", closed], cwd=root(), env={**os.environ, "PYTHONPATH": str(root())}, check=True)
        assert message.read_text() == "/dev/null /dev/null /dev/null"


def test_files_are_read_as_utf_8_in_any_locale(tmp_path: Path) -> None:
    script, environment = tmp_path / "script.py", {**os.environ, "PYTHONPATH": str(root())}
    script.write_text(
        "import subprocess, sys\n"
        "from runtime.cli.local import processes\n"
        "if processes.own_id() is None: processes.restart_with_id()\n"
        "show = 'import locale, sys; print(locale.getpreferredencoding(False))'\n"
        "exec(show)\n"
        "subprocess.run([sys.executable, '-c', show])\n"
    )
    without = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=root(), env={**environment, **without}, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.lower().split() == ["utf-8", "utf-8"]


def restarted(tmp_path: Path, code: str, **variables: str) -> str:
    """Return the output of `code` after a restart like that of `serve`, with its log in a file."""
    script, environment = tmp_path / "script.py", {**os.environ, "PYTHONPATH": str(root())}
    script.write_text(
        "import os, signal, sys\n"
        "from runtime.cli.local import processes\n"
        "if processes.own_id() is None: processes.restart_with_id()\n"
        f"{code}\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=root(), env={**environment, **variables}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout.strip()


def test_variables_of_python_that_engines_do_not_bear_have_no_effect(tmp_path: Path) -> None:
    """Without docstrings transformers loads no model, and vLLM does not start if warnings are errors."""
    code = "print(sys.flags.optimize, sys.warnoptions)"
    assert restarted(tmp_path, code, PYTHONOPTIMIZE="2", PYTHONWARNINGS="error") == "0 []"
    assert restarted(tmp_path, code, PYTHONWARNINGS="ignore::UserWarning") == "0 ['ignore::UserWarning']"


def test_a_reload_does_not_end_a_server_that_starts(tmp_path: Path) -> None:
    """It waits until the server can do it."""
    assert restarted(tmp_path, "os.kill(os.getpid(), signal.SIGHUP); print(*signal.sigpending())") == "1"


def test_newer_tables_on_postgresql_are_refused_too(tmp_path: Path, database_url: str) -> None:
    settings = Settings(data_dir=tmp_path, run_dir=tmp_path, database=database_url)
    _check_versions(settings)  # without tables
    State(tmp_path, url=database_url).close()
    open_tables(tmp_path, database_url).close()
    _check_versions(settings)
    with closing(Database(url_of(database_url), schema=f"roundhouse_{server_id(tmp_path)}")) as state:
        set_version(state, STATE_VERSION, "9999")
        with pytest.raises(UsageError, match="was written by a newer Roundhouse"):
            _check_versions(settings)
        set_version(state, STATE_VERSION, "0001")
    with closing(Database(url_of(database_url))) as teams:
        set_version(teams, TENANTS_VERSION, "9999")
    with pytest.raises(UsageError, match="was written by a newer Roundhouse"):
        _check_versions(settings)


def set_version(database: Database, table: str, version: str) -> None:
    with database.write() as connection:
        connection.execute(sa.text(f"UPDATE {table} SET version_num = :it, least = :it"), {"it": version})


@pytest.mark.parametrize("option", ["--max-json", "--max-bodies", "--max-audio", "--max-adapter"])
def test_a_size_that_refuses_everything_is_wrong_usage(option: str, run: Run) -> None:
    done = run("serve", option, "0")
    assert done.exit_code == 2
    assert f"{option} cannot be '0'; write 1 or more" in done.stderr


@pytest.mark.parametrize("file", ["state.db", "tenants.db"])
def test_a_newer_database_is_refused_before_a_process_starts(tmp_path: Path, file: str) -> None:
    """After exit code 4, a service manager would repeat the start and hide why it fails."""
    tables = {"state.db": STATE_VERSION, "tenants.db": TENANTS_VERSION}
    with closing(sqlite3.connect(tmp_path / file)) as database, database:
        database.execute(f"CREATE TABLE {tables[file]} (version_num TEXT, least TEXT)")
        database.execute(f"INSERT INTO {tables[file]} VALUES ('9999', '9999')")
    done = serve("--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert f"{file} was written by a newer Roundhouse. Start that version, or restore" in done.stderr
    assert "Application startup failed" not in done.stderr


def test_a_database_that_is_away_is_named_before_a_process_starts(tmp_path: Path) -> None:
    """A service manager tries again after exit code 1. No log and no answer has the password."""
    done = serve(
        "--data-dir", str(tmp_path), "--database", f"postgresql+psycopg://me:secret@127.0.0.1:{free_port()}/none"
    )
    assert done.returncode == 1
    assert "The server cannot start without its database, postgresql+psycopg://me:***@127.0.0.1" in done.stderr
    assert "secret" not in done.stderr
    assert "Application startup failed" not in done.stderr
