"""Nodes and fronts of one fleet, which share an authority, a database, and a pepper."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fleet.certificates import issue, make_authority
from tests.eventually import eventually
from tests.postgres import postgres, programs
from tests.system.serving import ROOT, STARTER, Server, free_port

PEPPER = "tests of a fleet, 32 characters or more"


def has_postgres() -> bool:
    return programs() is not None


class FleetOfServers:
    """Starts the servers of a fleet, and closes them with itself."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder, self.database = folder, database
        self.authority = folder / "authority"
        self._stack = ExitStack()
        make_authority(self.authority)

    def node(
        self,
        name: str,
        recipes: Sequence[Path] = (STARTER,),
        *options: str,
        host: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
        tree: Path = ROOT,
    ) -> Server:
        """Start a node.

        host: the address of its port for the fleet. environment: more variables. tree: a checkout of another version.
        """
        port = free_port()
        listen = ("--fleet-listen", f"{host}:{port}", "--fleet-address", f"https://{host}:{port}")
        return self._start(name, recipes, *listen, *options, environment=environment, tree=tree)

    def front(self, name: str, *options: str, tree: Path = ROOT) -> Server:
        return self._start(name, (), "--front", *options, tree=tree)

    def _start(
        self,
        name: str,
        recipes: Sequence[Path],
        *options: str,
        environment: Mapping[str, str] | None = None,
        tree: Path = ROOT,
    ) -> Server:
        data = self.folder / name
        issue(self.authority, name, data / "fleet")
        env = {**os.environ, "ROUNDHOUSE_DATABASE": self.database, "ROUNDHOUSE_PEPPER": PEPPER, **(environment or {})}
        if tree != ROOT:
            env["PYTHONPATH"] = str(tree)
        server = Server(data, recipes, "--fleet", "tests", *options, env=env, cwd=tree)
        self._stack.callback(server.close)
        return server

    def close(self) -> None:
        self._stack.close()


@contextmanager
def fleet(folder: Path) -> Iterator[FleetOfServers]:
    with postgres() as url:
        servers = FleetOfServers(folder, url)
        try:
            yield servers
        finally:
            servers.close()


def wait_for_models(front: Server, *names: str) -> None:
    """Wait until the front knows these models of the nodes."""

    def are_known() -> bool:
        return {one["id"] for one in front.http.get("/v1/models").json()["data"]} >= set(names)

    eventually(are_known, front.tail)
