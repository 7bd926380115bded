"""deploy/kubernetes is valid by Kubernetes' schemas, with commands, probes and ports that the server has."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from docs.tables.cli import walk
from fleet.certificates import AUTHORITY, SERVER, SERVER_KEY, issue, make_authority, renew
from fleet.tls import FleetTls
from runtime.cli.commands.server.options import given
from runtime.cli.local.fleet import check_settings
from runtime.cli.local.options import settings_of
from runtime.cli.main import app
from runtime.config.settings import Settings
from runtime.http.routes import routes
from tests.deploy.test_files import DEPLOY, variables

KUBERNETES = DEPLOY / "kubernetes"
VERSIONS = ("1.33", "1.35", "1.37")
FILES = ("nodes.yaml", "fronts.yaml", "network.yaml")
PODS = {"POD_NAMESPACE": "ml"}
CUSTOM = {"ScaledObject", "Issuer", "InferencePool"}
"""Kinds of KEDA, cert-manager and the Inference Extension, for which Kubernetes has no schema."""
COMPONENTS = ("gpu", "keda", "cert-manager", "inferencepool")


def objects(text: str) -> dict[tuple[str, str], Any]:
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


BASE = objects("\n---\n".join((KUBERNETES / "base" / name).read_text() for name in FILES))
SETS = {name: one["spec"] for (kind, name), one in BASE.items() if kind == "StatefulSet"}


def container(name: str) -> Any:
    (one,) = SETS[name]["template"]["spec"]["containers"]
    return one


def settings(name: str, pod: str) -> Settings:
    """Return the settings with which a pod's server starts."""
    one, names = container(name), {**PODS, "POD_NAME": pod}
    words = [*one["command"], *one["args"]]
    program, command, *options = [re.sub(r"\$\((\w+)\)", lambda found: names[found[1]], word) for word in words]
    serve = dict(walk(typer.main.get_command(app), "roundhouse"))[f"{program} {command}"]
    with serve.make_context(command, options) as context:
        return settings_of(**given(context))


def validate(one: Any, version: str) -> None:
    kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_each_object(version: str) -> None:
    for one in BASE.values():
        validate(one, version)


def test_the_schemas_refuse_a_misspelt_field() -> None:
    wrong = {**SETS["roundhouse-node"], "replica": 2}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        validate({**BASE["StatefulSet", "roundhouse-node"], "spec": wrong}, VERSIONS[-1])


def test_kustomize_accepts_all_folders_together(tmp_path: Path) -> None:
    """They are combined as in docs/kubernetes.md."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    (tmp_path / "own").mkdir()
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    own = {
        "namespace": "ml",
        "resources": ["../kubernetes/base"],
        "components": [f"../kubernetes/{component}" for component in COMPONENTS],
    }
    (tmp_path / "own" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path / "own")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = objects(done.stdout)
    added = {("ScaledObject", "roundhouse-node"), ("Issuer", "roundhouse"), ("InferencePool", "roundhouse-node")}
    assert set(made) == {*BASE, *added}
    for (kind, _), one in made.items():
        assert one["metadata"]["namespace"] == "ml"
        if kind not in CUSTOM:
            validate(one, VERSIONS[-1])
    node = made["StatefulSet", "roundhouse-node"]["spec"]
    assert "replicas" not in node, "KEDA decides the number"
    (one,) = node["template"]["spec"]["containers"]
    assert (one["image"], one["resources"]["limits"]["nvidia.com/gpu"]) == ("roundhouse:cuda", 1)
    for name in SETS:
        spec = made["StatefulSet", name]["spec"]["template"]["spec"]
        assert "--fleet-certificates=/certificates" in spec["containers"][0]["args"]
        (volume,) = [one for one in spec["volumes"] if one["name"] == "certificates"]
        attributes = {key.partition("/")[2]: value for key, value in volume["csi"]["volumeAttributes"].items()}
        assert (attributes["dns-names"], attributes["issuer-name"]) == ("${POD_NAME}", "roundhouse")
        files = [attributes[f"{file}-file"] for file in ("ca", "certificate", "privatekey")]
        assert files == [AUTHORITY, SERVER, SERVER_KEY]
        assert int(attributes["fs-group"]) == spec["securityContext"]["fsGroup"]
        assert not any("secret" in one for one in spec["volumes"]), "no pod has another pod's certificate"
    open_port = made["NetworkPolicy", "roundhouse-node"]["spec"]["ingress"][1]
    assert open_port == {"ports": [{"port": "http"}]}


def test_kustomizations_name_all_files_and_only_patch_existing_objects() -> None:
    for folder in ("base", *COMPONENTS):
        kustomization = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
        named = {"kustomization.yaml", *kustomization.get("resources", ())}
        assert named == {path.name for path in (KUBERNETES / folder).iterdir()}
        for patch in kustomization.get("patches", ()):
            assert (patch["target"]["kind"], patch["target"]["name"]) in BASE


def test_the_inference_pool_is_the_nodes_public_port() -> None:
    pool = yaml.safe_load((KUBERNETES / "inferencepool" / "inferencepool.yaml").read_text())["spec"]
    node = SETS["roundhouse-node"]["template"]
    assert pool["selector"]["matchLabels"] == node["metadata"]["labels"]
    ports = {one["name"]: one["containerPort"] for one in container("roundhouse-node")["ports"]}
    assert pool["targetPorts"] == [{"number": ports["http"]}]
    assert {"name", "port", "failureMode"} == set(pool["endpointPickerRef"])


@pytest.mark.parametrize("name", SETS)
def test_the_commands_start_servers_that_can_join_the_fleet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_DATABASE", "postgresql+psycopg://db/roundhouse")
    read = settings(name, f"{name}-0")
    check_settings(read)
    assert read.front == (name == "roundhouse-front")
    ports = {one["name"]: one["containerPort"] for one in container(name)["ports"]}
    assert ports["http"] == read.port
    if read.fleet_listen is not None:
        assert read.fleet_listen.endswith(f":{ports['fleet']}")
        service = BASE["Service", SETS[name]["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"
        assert read.fleet_address == f"https://{name}-0.{service['metadata']['name']}.ml.svc:{ports['fleet']}"
    else:
        assert {"roundhouse", "roundhouse.ml.svc.cluster.local"} <= set(read.allowed_hosts)


@pytest.mark.parametrize("name", SETS)
def test_the_environment_sets_known_variables_and_none_by_service_links(name: str) -> None:
    set_ = {one["name"] for one in container(name)["env"]}
    assert {one for one in set_ if one.startswith("ROUNDHOUSE_")} - {"ROUNDHOUSE_PEPPER"} <= variables()
    assert {"ROUNDHOUSE_DATABASE", "ROUNDHOUSE_PEPPER"} <= set_
    services = {f"{one.upper()}_PORT" for kind, one in BASE if kind == "Service"}
    assert services & variables(), "service links would set one of the server's settings"
    assert SETS[name]["template"]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("name", SETS)
def test_probes_name_routes_that_exist(name: str) -> None:
    known = {path for path, _, methods in routes() if "GET" in methods}
    ports = {one["name"] for one in container(name)["ports"]}
    probes = [container(name)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {one["path"] for one in probes} == {"/health/live", "/health/ready"} <= known
    assert {one["port"] for one in probes} <= ports


@pytest.mark.parametrize("name", SETS)
def test_a_stop_has_time_for_running_answers(name: str) -> None:
    program, seconds = container(name)["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    grace = SETS[name]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= int(seconds) + settings(name, f"{name}-0").drain_seconds + 10


@pytest.mark.parametrize("name", SETS)
def test_each_pod_finds_its_certificate(name: str, tmp_path: Path) -> None:
    spec = SETS[name]["template"]["spec"]
    (secret,) = [one["secret"] for one in spec["volumes"] if one["name"] == "certificates"]
    (mount,) = [one["mountPath"] for one in container(name)["volumeMounts"] if one["name"] == "certificates"]
    scaled = yaml.safe_load((KUBERNETES / "keda" / "scaledobject.yaml").read_text())["spec"]
    most = scaled["maxReplicaCount"] if scaled["scaleTargetRef"]["name"] == name else SETS[name]["replicas"]
    pods = [f"{name}-{number}" for number in range(most)]
    expected = [(f"{pod}.{file}", f"{pod}/{file}") for pod in pods for file in (AUTHORITY, SERVER)]
    assert [(one["key"], one["path"]) for one in secret["items"]] == expected
    assert [settings(name, pod).fleet_folder for pod in pods] == [Path(mount) / pod for pod in pods]
    make_authority(tmp_path / "authority")
    assert [issue(tmp_path / "authority", pod, tmp_path / pod).name for pod in pods] == pods


def test_a_renewed_secret_is_used_without_a_restart(tmp_path: Path) -> None:
    """Kubernetes replaces all files of a Secret at the same time, with one link."""
    authority, made = tmp_path / "authority", tmp_path / "made"
    make_authority(authority)
    issue(authority, "roundhouse-node-0", made)
    volume = tmp_path / "volume"

    def publish(number: int) -> None:
        shutil.copytree(made, volume / f"..{number}" / "roundhouse-node-0")
        (volume / "..new").symlink_to(f"..{number}")
        os.replace(volume / "..new", volume / "..data")

    publish(1)
    (volume / "roundhouse-node-0").symlink_to("..data/roundhouse-node-0")
    tls = FleetTls(volume / "roundhouse-node-0")
    assert not tls.refresh()
    before = tls.certificate.ends
    renew(authority, made, days=200)
    publish(2)
    assert tls.refresh()
    assert tls.certificate.ends > before


def test_selectors_match_the_pods_and_network_policies_let_servers_connect() -> None:
    labels = {name: one["template"]["metadata"]["labels"] for name, one in SETS.items()}
    for (kind, name), one in BASE.items():
        spec = one["spec"]
        selector = spec.get("podSelector", spec.get("selector"))
        if kind == "Service":
            selector = {"matchLabels": selector}
        matched = [pod for pod, has in labels.items() if selector["matchLabels"].items() <= has.items()]
        assert matched == [f"roundhouse-{one['metadata']['labels']['app.kubernetes.io/component']}"], (kind, name)
    node = BASE["NetworkPolicy", "roundhouse-node"]["spec"]["ingress"]
    (fleet,) = [one for one in node if one["ports"] == [{"port": "fleet"}]]
    (allowed,) = fleet["from"]
    assert all(allowed["podSelector"]["matchLabels"].items() <= has.items() for has in labels.values())
    (front,) = BASE["NetworkPolicy", "roundhouse-front"]["spec"]["ingress"]
    assert front == {"ports": [{"port": "http"}]}
