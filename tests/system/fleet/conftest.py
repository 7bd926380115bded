"""A node on the starter pack and a front before it, for tests that only send requests."""

from collections.abc import Iterator

import pytest

from tests.system.fleet.serving import FleetOfServers, fleet, has_postgres, wait_for_models
from tests.system.serving import Server


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetOfServers]:
    if not has_postgres():
        pytest.skip("there is no PostgreSQL: apt-get install postgresql")
    with fleet(tmp_path_factory.mktemp("fleet")) as servers:
        yield servers


@pytest.fixture(scope="package")
def pair(servers: FleetOfServers) -> tuple[Server, Server]:
    """A front and a node."""
    node, front = servers.node("node-1"), servers.front("front-1", "--shared-port")
    front.wait_ready()
    node.wait_ready().wait_state("starter-chat", "ready")  # other loads wait for it
    wait_for_models(front, "starter-chat", "starter-embed", "starter-rerank", "starter-speech", "uppercase")
    return front, node
