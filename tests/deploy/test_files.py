"""Files for systemd, containers, Prometheus, KEDA and Grafana are valid and name things that the server has."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from prometheus_client import Counter, Histogram, Summary
from prometheus_client.metrics import MetricWrapperBase
from pydantic import ByteSize, TypeAdapter

from docs.tables.cli import parameters, walk
from registry.recipes.definition import QueueSpec
from runtime.cli.local.data_dir import DataDir
from runtime.cli.main import app
from runtime.config.settings import Settings
from runtime.gateway.metrics import Metrics
from runtime.gateway.record import End
from tenants.caller import ServiceClass
from tests.docs.blocks import ROOT
from tests.unit.http.admin.test_engine_series import vllm_names

DEPLOY = ROOT / "deploy"
STARTER = ROOT / "starter-training" / "starter_training"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def variables() -> set[str]:
    commands = dict(walk(typer.main.get_command(app), "roundhouse"))
    return {str(p.envvar) for p in parameters(commands["roundhouse serve"]) if p.envvar}


@pytest.mark.parametrize("name", ["Containerfile", "roundhouse.service"])
def test_environment_variables_exist(name: str) -> None:
    text = (DEPLOY / name).read_text()
    assert set(re.findall(r"\bROUNDHOUSE_[A-Z_]+", text)) - variables() == set()


@pytest.mark.parametrize("path", ["deploy/roundhouse.service", "docs/deploy.md"])
def test_the_first_key_is_made_in_the_services_folder_as_its_user(path: str) -> None:
    """Otherwise the service would still have no key, and be open to everybody."""
    unit = (DEPLOY / "roundhouse.service").read_text()
    (user,) = re.findall(r"^User=(.+)", unit, re.MULTILINE)
    (folder,) = re.findall(r"^Environment=ROUNDHOUSE_DATA_DIR=(.+)", unit, re.MULTILINE)
    (program,) = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)
    (command,) = re.findall(rf"runuser .*{program} keys create .*", (ROOT / path).read_text())
    assert command == f"runuser -u {user} -- {program} keys create --scopes all --data-dir {folder}"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "roundhouse.service"
    text = (DEPLOY / "roundhouse.service").read_text()
    unit.write_text(text.replace("/opt/roundhouse/.venv/bin", str(Path(sys.executable).parent)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_hadolint_accepts_the_containerfile() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("hadolint is not installed")
    # DL3008 (no pinned versions): packages come from the base image's release, with its security updates
    command = ["hadolint", "--no-color", "--ignore", "DL3008", str(DEPLOY / "Containerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("status", "healthy", "by_file"), [(200, True, True), (503, False, True), (200, True, False)])
def test_a_containers_health_check_asks_its_own_server_despite_a_proxy(
    tmp_path: Path, status: int, healthy: bool, by_file: bool
) -> None:
    """Docker passes its proxy settings to containers, but the proxy cannot reach a container's loopback.

    The port is that of --port, which the server writes into its data directory, or else of the variable.
    """
    requested: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (command,) = re.findall(r"^    CMD (\[.+\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
        _, *words = json.loads(command)
        port = "9" if by_file else str(server.server_port)
        environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": "", "ROUNDHOUSE_PORT": port}
        environment["ROUNDHOUSE_DATA_DIR"] = str(tmp_path)
        if by_file:
            with DataDir(tmp_path, f"http://127.0.0.1:{server.server_port}"):
                shutil.copy(tmp_path / "server.json", tmp_path / "kept")
            (tmp_path / "kept").rename(tmp_path / "server.json")
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
        server.shutdown()
    assert (done.returncode == 0, requested) == (healthy, ["/health/ready"]), done.stderr


def test_images_leave_out_what_git_ignores() -> None:
    """Tools and trainings leave gigabytes in a checkout."""
    ignored = {line.strip("/").removeprefix("**/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    left_out = {line.removeprefix("**/") for line in (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()}
    assert ignored <= left_out
    (work,) = re.findall(r'"--work", type=Path, default=Path\("(.+?)"\)', (STARTER / "__main__.py").read_text())
    assert work in ignored


def test_systemd_and_compose_give_a_stop_more_time_than_the_server_takes() -> None:
    unit = (DEPLOY / "roundhouse.service").read_text()
    drain = next(p.default for p in parameters(_serve()) if "--drain-seconds" in p.opts)
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(seconds) > float(str(drain))
    assert float(read("compose.yaml")["services"]["roundhouse"]["stop_grace_period"].rstrip("s")) > float(str(drain))


def test_the_proxy_waits_longer_and_takes_more_than_the_server() -> None:
    """So the server itself refuses what is over a limit, with the reason and Retry-After."""
    site = (DEPLOY / "nginx.conf").read_text()
    serve = {p.name: p.default for p in parameters(_serve())}

    def seconds(name: str) -> float:
        (value,) = re.findall(rf"^ +{name} (\d+[smh]);", site, re.MULTILINE)
        return float(value[:-1]) * {"s": 1, "m": 60, "h": 3600}[value[-1]]

    longest = max(QueueSpec().max_wait, float(serve["drain_seconds"]))
    assert seconds("proxy_read_timeout") > longest
    assert seconds("proxy_send_timeout") > longest
    longest_idle = Settings.model_fields["keep_alive"].default
    assert seconds("keepalive_timeout") < longest_idle, "otherwise it sends on connections that the server is closing"
    (size,) = re.findall(r"client_max_body_size (\d+)m;", site)
    assert int(size) << 20 > TypeAdapter(ByteSize).validate_python(serve["max_adapter"])
    assert "proxy_buffering off;" in site
    assert "proxy_request_buffering off;" in site


def _serve() -> Any:
    return dict(walk(typer.main.get_command(app), "roundhouse"))["roundhouse serve"]


def test_compose_mounts_existing_files_and_scrapes_a_listening_port() -> None:
    compose = read("compose.yaml")
    services = compose["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert (DEPLOY.parent / services["roundhouse"]["build"]["dockerfile"]).exists()
    (job,) = read("prometheus.yml")["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in services
    assert f"EXPOSE {port}" in (DEPLOY / "Containerfile").read_text()
    assert host in services["roundhouse"]["command"], "the server refuses an unknown Host"
    source = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"][0]
    assert source["url"].split("/")[-1].split(":")[0] in services
    assert set(read("compose.gpu.yaml")["services"]) <= set(services)


def test_docker_accepts_the_compose_files() -> None:
    compose = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "-f", str(DEPLOY / "compose.gpu.yaml")]
    if shutil.which("docker") is None or subprocess.run([*compose[:2], "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    done = subprocess.run([*compose, "config", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_prometheus_accepts_its_file() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    command = ["promtool", "check", "config", str(DEPLOY / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_for_the_class_whose_objective_is_missed() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    command = ["promtool", "test", "rules", str(Path(__file__).with_name("alerts.test.yml"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_use_existing_buckets_classes_ends_and_series() -> None:
    (group,) = read("alerts.yml")["groups"]
    text = " ".join(rule["expr"] for rule in group["rules"])
    bounds = {float(bound) for bound in re.findall(r'le="([\d.]+)"', text)}
    assert bounds <= set(Metrics().first._upper_bounds)
    assert set(re.findall(r'class="(\w+)"', text)) == {one.label for one in ServiceClass}
    ends = re.findall(r'end!?=~"([\w|]+)"', text)
    assert {end for word in ends for end in word.split("|")} <= set(End)
    assert set(re.findall(r"roundhouse_\w+(?=\{|\[)", text)) <= set(series())


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("keda.yaml", {"name": "roundhouse"}),
        (
            "kubernetes/keda/scaledobject.yaml",
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "roundhouse-node"},
        ),
    ],
)
def test_keda_scales_to_the_desired_replicas(name: str, target: dict[str, str]) -> None:
    """All fields exist in KEDA's ScaledObject and its Prometheus scaler."""
    scaled = read(name)
    assert scaled["spec"]["scaleTargetRef"] == target
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert set(scaled["spec"]) <= {
        "scaleTargetRef", "pollingInterval", "cooldownPeriod", "idleReplicaCount", "minReplicaCount",
        "maxReplicaCount", "fallback", "advanced", "triggers",
    }  # fmt: skip
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
    (metric, label), known = re.findall(r"(roundhouse_\w+)\{(\w+)=", trigger["metadata"]["query"])[0], series()
    assert metric == "roundhouse_wanted_replicas"
    assert known[metric] == {label}
    assert trigger["metadata"]["threshold"] == "1", "the metric's sum is the number of servers"


def series() -> dict[str, set[str]]:
    """Return the series' names as queries write them, with their labels."""
    found: dict[str, set[str]] = {}
    for value in vars(Metrics()).values():
        if isinstance(value, MetricWrapperBase):
            labels = set(value._labelnames)
            if isinstance(value, Counter):
                found[f"{value._name}_total"] = labels
            elif isinstance(value, Histogram):
                found |= {f"{value._name}_{part}": labels | {"le"} for part in ("bucket", "count", "sum")}
            elif isinstance(value, Summary):
                found |= {f"{value._name}_{part}": labels for part in ("count", "sum")}
            else:
                found[value._name] = labels
    return found | {name: {"model_name", "engine"} for name in vllm_names()}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_dashboards_query_existing_series_and_labels(path: Path) -> None:
    (group,) = read("alerts.yml")["groups"]
    recorded = {rule["record"].split(":")[1]: {"class"} for rule in group["rules"] if "record" in rule}
    board, known = json.loads(path.read_text()), series() | recorded
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable["query"]["query"] for variable in board["templating"]["list"]]
    assert len(queries) > 12
    for query in (query for query in queries if not query.startswith("vector(")):
        named = re.findall(r"\b((?:roundhouse_|vllm:)\w+)", query)
        assert named
        assert set(named) <= set(known), query
        labels = set(re.findall(r"(\w+)=~?\"", query)) | set(re.findall(r"[(,] ?(\w+)(?=, \w+\) \(|\) \()", query))
        assert labels - {"model", "le"} <= set().union(*(known[name] for name in named)), query
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {
        read("grafana/provisioning/datasources/prometheus.yaml")["datasources"][0]["uid"]
    }
