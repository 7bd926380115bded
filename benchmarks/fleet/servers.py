"""PostgreSQL, nodes with the scripted engine, fronts, and HAProxy in place of a front."""

import base64
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmarks.peers.servers import START_WITHIN, NotStarted, Roundhouse, Server, free_port
from benchmarks.report.generated import write_model
from benchmarks.streams import PER_MODEL, Scripted, scripted_recipe
from fleet.certificates import AUTHORITY, SERVER, issue, make_authority
from runtime.gateway.peers.hop import HEADER, Hop, encode
from tenants.caller import ServiceClass
from tests.postgres import postgres, programs

FLEET = "bench"
PEPPER = "benchmarks of a fleet, 32 characters or more"
PACED, CROWDS = "paced", ("crowd-0", "crowd-1", "crowd-2")
"""Models: one that runs AT_ONCE requests, and those for crowds, which hold 10,000 streams with one replica each."""
AT_ONCE = 16
CONTEXT_ID = "%[uuid()]"
"""Placeholder of a request's id in `context_of`, in HAProxy's syntax."""


class FleetMember(Roundhouse):
    """A server of the fleet, with a certificate for its name."""

    def __init__(self, name: str, folder: Path, database: str, recipes: Sequence[Path], *options: str) -> None:
        super().__init__(CROWDS[0], folder / name, recipes, "--fleet", FLEET, *options)
        self.name, self._database = name, database
        issue(folder / "authority", name, self.folder / "data" / "fleet")

    def variables(self) -> Mapping[str, str]:
        return {"ROUNDHOUSE_DATABASE": self._database, "ROUNDHOUSE_PEPPER": PEPPER}

    def states(self) -> dict[str, str]:
        """Return this server's view of the states of all: up, draining, silent or gone."""
        answer = self.http.get("/v1/fleet")
        answer.raise_for_status()
        return {member["name"]: member["state"] for member in answer.json()["members"]}


class Front(FleetMember):
    def __init__(self, name: str, folder: Path, database: str, *options: str) -> None:
        super().__init__(name, folder, database, (), "--front", *options)

    def prepare(self) -> None:
        """Load no models: a front knows those that nodes report (`wait_for`)."""

    def wait_for(self, models: Sequence[str], nodes: Sequence[str]) -> None:
        """Wait until the front knows that these models are ready on all these nodes. Raises NotStarted."""

        def knows() -> bool:
            members = {member["name"]: member for member in self.http.get("/v1/fleet").json()["members"]}
            ready = {name: {m["model"] for m in member["models"] if m["ready"]} for name, member in members.items()}
            return all(ready.get(node, set()) >= set(models) for node in nodes)

        wait_until(knows, f"{self.name} does not know {', '.join(models)} on {', '.join(nodes)}")


class ScriptedNode(Scripted, FleetMember):
    """A node with the scripted engine, whose port for the fleet is on `host`."""

    def __init__(
        self, name: str, folder: Path, database: str, recipes: Sequence[Path], *options: str, host: str = "127.0.0.1"
    ) -> None:
        self.fleet_port = free_port()
        address = f"{host}:{self.fleet_port}"
        listen = ("--fleet-listen", address, "--fleet-address", f"https://{address}")
        FleetMember.__init__(self, name, folder, database, recipes, *listen, *options)
        self._load = [str(yaml.safe_load(file.read_text())["id"]) for file in recipes]
        self.model = self._load[0]


class HaProxy(Server):
    """HAProxy in place of a front: TLS 1.3 to a node's port for the fleet, both sides verified, one thread.

    It adds a front's header to each request, so the node does the same work as for a front.
    """

    def __init__(self, node: ScriptedNode, folder: Path, certificates: Path) -> None:
        super().__init__("HAProxy", node.model, folder)
        self._node, self._certificates = node, certificates
        revision = str(node.http.get(f"/v1/models/{node.model}").json()["revision"])
        self._file = folder / "haproxy.cfg"
        folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(self.settings(context_of(node.model, revision)))

    def command(self) -> Sequence[str]:
        return [shutil.which("haproxy") or "haproxy", "-db", "-f", str(self._file)]

    def settings(self, context: str) -> str:
        """Return the configuration. `context` is the text of a front's header before base64."""
        return _HAPROXY.format(
            port=self.port, node=self._node.name, peer=self._node.fleet_port, header=HEADER, context=context,
            own=self._certificates / SERVER, authority=self._certificates / AUTHORITY,
        )  # fmt: skip


def context_of(model: str, revision: str) -> str:
    """Return a front's context for HAProxy, which fills in each request's id."""
    hop = Hop(id="of-HAProxy", model=model, revision=revision, requested=model, service_class=ServiceClass.INTERACTIVE)
    return base64.b64decode(encode(hop)).decode().replace("of-HAProxy", CONTEXT_ID)


_HAPROXY = """\
global
    maxconn 8000
    nbthread 1
defaults
    mode http
    option http-no-delay
    timeout connect 3s
    timeout client 10m
    timeout server 10m
frontend public
    bind 127.0.0.1:{port}
    http-request return status 200 if {{ path /health }}
    http-request set-var-fmt(txn.context) '{context}'
    http-request set-header {header} %[var(txn.context),base64]
    default_backend nodes
backend nodes
    http-reuse always
    server {node} 127.0.0.1:{peer} ssl ssl-min-ver TLSv1.3 crt {own} ca-file {authority} verify required \
verifyhost {node} sni str({node})
"""


def has_postgres() -> bool:
    return programs() is not None


def has_haproxy() -> bool:
    return shutil.which("haproxy") is not None


@contextmanager
def database(folder: Path) -> Iterator[str]:
    """Start a PostgreSQL and create the fleet's certificate authority in a folder; yields the database's URL."""
    folder.mkdir(parents=True, exist_ok=True)
    make_authority(folder / "authority")
    with postgres() as url:
        yield url


def recipes(folder: Path) -> list[Path]:
    """Write the recipes of PACED and CROWDS. Only the size of their weights is read."""
    weights = write_model(folder / "tiny-model", hidden=128, ffn=256, layers=2)
    crowds = [scripted_recipe(folder / "recipes", name, weights) for name in CROWDS]
    return [*crowds, scripted_recipe(folder / "recipes", PACED, weights, batching={"max_requests": AT_ONCE})]


def node_options(slots: int) -> list[str]:
    """Return options of a node that accepts PER_MODEL streams for each model."""
    return ["--slots", str(slots), "--no-prewarm", "--device", "cpu", "--max-waiting", str(PER_MODEL), *CROWD_OPTIONS]


CROWD_OPTIONS = ("--bounds-factor", "8")
"""Raises the limits per address, because all connections of a crowd come from one."""


def wait_until(condition: Callable[[], bool], problem: str, within: float = START_WITHIN) -> None:
    """Wait until the condition holds. Raises NotStarted with the problem if it never does."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise NotStarted(f"{problem} after {within:.0f} s")
        time.sleep(0.1)
