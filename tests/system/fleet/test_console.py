"""The console of a front and of a node of a real fleet."""

import pytest

from tests.eventually import eventually
from tests.system.serving import Server

pytestmark = pytest.mark.real


def test_the_page_fleet_has_both_servers_and_the_ends_of_their_certificates(pair: tuple[Server, Server]) -> None:
    front, node = pair

    def are_complete() -> bool:
        seen, of_node = (one.http.get("/console/fleet?part=servers").text for one in pair)
        return (seen.count("90 days"), of_node.count("90 days")) == (2, 1)  # fronts report nothing to a node

    eventually(are_complete, front.tail)
    assert "GiB</span>" in front.http.get("/console/fleet?part=servers").text, "the node's memory"
    for server, words in ((front, "this front, front-1"), (node, "this node, node-1")):
        for slug in ("now", "requests", "fleet"):
            page = server.http.get(f"/console/{slug}")
            assert page.status_code == 200
            assert words in page.text
