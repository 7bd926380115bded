"""The console of a front and of a node of a real fleet."""

import pytest

from tests.eventually import eventually
from tests.system.serving import Server

pytestmark = pytest.mark.real


def test_the_page_fleet_has_both_servers_and_when_their_certificates_expire(pair: tuple[Server, Server]) -> None:
    front, node = pair

    def are_complete() -> bool:
        of_front, of_node = (one.http.get("/console/fleet?part=servers").text for one in pair)
        return (of_front.count("90 days"), of_node.count("90 days")) == (2, 1)  # fronts report nothing to a node

    eventually(are_complete, front.tail)
    assert "GiB</span>" in front.http.get("/console/fleet?part=servers").text, "the node's memory"
    for server, words in ((front, "this front, front-1"), (node, "this node, node-1")):
        for slug in ("now", "requests", "fleet"):
            page = server.http.get(f"/console/{slug}")
            assert page.status_code == 200
            assert words in page.text


def test_a_nodes_own_pages_open_at_the_front(pair: tuple[Server, Server]) -> None:
    front, _ = pair
    for slug in ("now", "requests"):
        page = front.http.get(f"/console/at/node-1/{slug}")
        assert (page.status_code, page.headers["x-roundhouse-node"]) == (200, "node-1"), page.text
        assert "this node, node-1" in page.text
    with front.http.stream("GET", "/console/at/node-1/events") as events:
        assert next(events.iter_lines()), "its stream has begun"


def offsets(front: Server) -> list[float]:
    """Return the clock offsets that the servers have measured so far."""
    measured = [one["clock_offset_seconds"] for one in front.http.get("/v1/fleet").json()["members"]]
    return [offset for offset in measured if offset is not None]


def test_the_front_says_why_requests_went_where(pair: tuple[Server, Server]) -> None:
    front, _ = pair
    body = {"model": "starter-embed", "input": "a"}
    assert front.http.post("/v1/embeddings", json=body, headers={"X-Request-Id": "shown-1"}).status_code == 200
    record = front.http.get("/v1/requests/shown-1")
    assert (record.headers["x-roundhouse-node"], record.json()["record"]["status"]) == ("node-1", 200)
    view = front.http.get("/v1/fleet").json()
    [passed] = [one for one in view["passed"] if one["id"] == "shown-1"]
    assert (passed["node"], passed["model"], passed["attempt"]) == ("node-1", "starter-embed", 1)
    eventually(lambda: [abs(offset) < 60 for offset in offsets(front)] == [True, True])  # one machine
    assert 'id="passed-shown-1-1"' in front.http.get("/console/fleet").text
