"""The fleet's port: which requests it accepts, and what it takes over from the server that passed one on."""

import base64
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from models.messages import EmbedResult, Event, ResponseEnd, Usage
from registry.errors import BadRequest, Unauthorized
from routing.decision import Decision
from runtime.gateway.context import RequestContext
from runtime.gateway.peers.hop import HEADER, MAX_BYTES, Hop, HopRoute, decode, encode
from runtime.gateway.target import RouteChoice, Target
from runtime.http.fleet.hops import HopHeaderFilter, HopMiddleware
from runtime.http.pages import _passed_caller
from tenants.caller import EVERYBODY, VISITOR, Caller, Person, Scope, ServiceClass
from tenants.keys.keyring import Keyring, TeamEntry
from tests.unit.http.fakes import FakeGateway, application
from tests.unit.http.hops.rig import with_fleet

KEYS = {
    "ABCD1234": Caller("search", "ABCD1234", frozenset({Scope.INFER}), ceiling=ServiceClass.INTERACTIVE),
    "LIMITED1": Caller("search", "LIMITED1", frozenset({Scope.INFER}), models=("chat",)),
}
MADE: dict[str, Caller] = {}
"""Keys that are found when keys are read again."""
HOP = Hop(id="one", model="embed", revision="rev", requested="mine", service_class=ServiceClass.INTERACTIVE)
BODY = {"model": "a name of the front", "input": "a"}


class Keys:
    def identify(self, keys: Sequence[str]) -> Caller:
        return EVERYBODY

    def by_id(self, id_: str, team: str) -> Caller:
        if id_ not in KEYS:
            raise Unauthorized("The key does not exist any more.", code="api_key_revoked")
        return KEYS[id_]


def vector(_: Any) -> list[Event]:
    return [EmbedResult(vectors=b"\0\0\x80?", dimensions=1, tokens=[1]), ResponseEnd(usage=Usage(prompt_tokens=1))]


@pytest.fixture
def node(tmp_path: Path) -> FakeGateway:
    fake = FakeGateway(tmp_path, keyring=Keys())
    fake.links["embed"].script = vector
    with_fleet(fake.gateway, SimpleNamespace(takes_requests=True, is_draining=False))

    async def refresh() -> None:
        KEYS.update(MADE)

    administration = SimpleNamespace(refresh=refresh)
    fake.gateway.services = replace(fake.gateway.services, administration=administration)
    return fake


async def post(node: FakeGateway, hop: Hop | bytes | None = HOP, path: str = "/v1/embeddings") -> httpx.Response:
    app = application(node, [(HopMiddleware, {})])
    headers = {} if hop is None else {HEADER: hop if isinstance(hop, bytes) else encode(hop)}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        return await client.post(path, json=BODY, headers=headers)


async def test_a_request_runs_as_if_its_client_had_called_this_node(node: FakeGateway) -> None:
    hop = msgspec.structs.replace(HOP, key="ABCD1234", left=60_000, source="evaluation")
    answer = await post(node, hop)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "mine", "the client's own name for the model"
    (record,) = node.records.all
    context = record.context
    assert (context.id, context.caller, context.source) == ("one", KEYS["ABCD1234"], "evaluation")
    assert context.deadline is not None
    assert 0 < context.deadline - time.monotonic() <= 60


@pytest.mark.parametrize(("is_visitor", "caller"), [(False, EVERYBODY), (True, VISITOR)])
async def test_a_client_without_a_key_has_the_rights_it_was_admitted_with(
    node: FakeGateway, is_visitor: bool, caller: Caller
) -> None:
    assert (await post(node, msgspec.structs.replace(HOP, is_visitor=is_visitor))).status_code == 200
    assert node.records.all[0].context.caller is caller


async def test_a_class_above_the_keys_ceiling_is_refused(node: FakeGateway) -> None:
    hop = msgspec.structs.replace(HOP, key="ABCD1234", service_class=ServiceClass.CRITICAL)
    assert (await post(node, hop)).headers["x-roundhouse-class"] == "interactive"


async def test_a_person_signed_in_at_the_other_server_counts_for_their_team_here(tmp_path: Path) -> None:
    """Nodes know neither sessions nor the sign-in provider."""
    ring = Keyring({}, bytes(32), is_open=False, teams={"search": TeamEntry("salt")}, sign_in=True)
    node = FakeGateway(tmp_path, keyring=ring)
    node.links["embed"].script = vector
    with_fleet(node.gateway, SimpleNamespace(takes_requests=True, is_draining=False))
    answer = await post(node, msgspec.structs.replace(HOP, key="@abcdefg", team="search"))
    assert answer.status_code == 200, answer.text
    caller = node.records.all[0].context.caller
    assert (caller.team, caller.key, caller.salt) == ("search", "@abcdefg", "salt")
    operator = ring.member(Person("@abcdefg", "", "search", frozenset((Scope.MODELS, Scope.ADAPTERS))))
    assert (await post(node, Hop.of_change(RequestContext("one", caller=operator)), "/v1/adapters")).status_code == 400
    assert _passed_caller(node.gateway, operator) == operator, "so that streams of the console go on"
    for key, scopes, path, status in (
        ("@abcdefg", (Scope.INFER,), "/v1/adapters", 403),
        ("ABCD1234", (Scope.ADAPTERS,), "/v1/adapters", 401),
    ):
        hop = msgspec.structs.replace(HOP, key=key, team="search", scopes=scopes)
        assert (await post(node, hop, path)).status_code == status, "nothing but a person has scopes of its own"


async def test_a_router_that_chose_the_target_is_in_answer_and_record(node: FakeGateway) -> None:
    decision = Decision("embed", "intent:dates", {"dates": 0.9}, previous="chat")
    target = Target("auto", "embed", "rev", routed=RouteChoice("auto@v1", decision))
    hop = Hop.of(RequestContext("one"), target, 1)
    assert (await post(node, hop)).headers["x-roundhouse-route"] == "auto@v1 embed intent:dates,left 0.900"


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"model": "none"}, 421, "misdirected_request"),
        ({"revision": "older"}, 421, "misdirected_request"),
        ({"adapter": "a", "digest": f"sha256:{0:064x}"}, 421, "misdirected_request"),
        ({"key": "UNKNOWN1"}, 401, "api_key_revoked"),
        ({"key": "LIMITED1"}, 403, "model_not_allowed"),
    ],
)
async def test_other_weights_and_other_keys_are_refused(
    node: FakeGateway, change: dict[str, Any], status: int, code: str
) -> None:
    answer = await post(node, msgspec.structs.replace(HOP, **change))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert node.links["embed"].requests == []


async def test_a_change_of_names_needs_its_own_scope(node: FakeGateway) -> None:
    hop = msgspec.structs.replace(HOP, model="", revision="", key="ABCD1234")
    answer = await post(node, hop, "/v1/adapters")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")


async def test_keys_are_read_again_for_a_new_key(node: FakeGateway) -> None:
    MADE["NEWNEW12"] = Caller("search", "NEWNEW12", frozenset({Scope.INFER}))
    assert (await post(node, msgspec.structs.replace(HOP, key="NEWNEW12"))).status_code == 200


async def test_a_stopping_or_drained_server_accepts_no_requests(node: FakeGateway) -> None:
    with_fleet(node.gateway, SimpleNamespace(takes_requests=False))
    assert (await post(node)).status_code == 421
    with_fleet(node.gateway, SimpleNamespace(takes_requests=True, is_draining=True))
    assert (await post(node)).status_code == 421


@pytest.mark.parametrize("name", ["a\r\nset-cookie: b=c", "a\nb", "\0", "ﬁ"])
@pytest.mark.parametrize("field", ["router", "target", "previous", "adapter"])
async def test_a_name_that_is_no_part_of_a_header_is_refused(node: FakeGateway, field: str, name: str) -> None:
    route = HopRoute("auto@v1", "embed", "intent:dates", previous="chat")
    if field == "adapter":
        hop = msgspec.structs.replace(HOP, adapter=name)
    else:
        hop = msgspec.structs.replace(HOP, route=msgspec.structs.replace(route, **{field: name}))
    answer = await post(node, hop)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_context")
    assert (await post(node, msgspec.structs.replace(HOP, route=route))).status_code == 200


@pytest.mark.parametrize(
    "header",
    [None, b"", b"no base64!", base64.b64encode(b"[]"), base64.b64encode(b'{"id":"x"}'), b"A" * (MAX_BYTES + 1)],
    ids=["none", "empty", "no base64", "no object", "half", "long"],
)
async def test_a_malformed_context_is_refused(node: FakeGateway, header: bytes | None) -> None:
    answer = await post(node, header)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_context")


async def test_the_public_port_drops_the_header(node: FakeGateway) -> None:
    dropped: list[bool] = []
    with_fleet(node.gateway, SimpleNamespace(count_dropped=lambda: dropped.append(True)))
    app: FastAPI = application(node, [(HopHeaderFilter, {})])
    forged = encode(msgspec.structs.replace(HOP, key="ABCD1234"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        answer = await client.post("/v1/embeddings", json={**BODY, "model": "embed"}, headers={HEADER: forged})
    assert answer.status_code == 200
    assert node.records.all[0].context.caller is EVERYBODY
    assert dropped == [True]


async def test_a_server_without_a_fleet_has_no_view_of_one(tmp_path: Path) -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=application(FakeGateway(tmp_path))), base_url="http://test"
    ) as client:
        answer = await client.get("/v1/fleet")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_fleet")


def test_a_context_is_decoded_as_it_was_encoded() -> None:
    hop = msgspec.structs.replace(HOP, route=HopRoute("auto@v1", "embed", "rule:a", 0.5), first_left=10)
    assert decode(encode(hop).encode()) == hop
    with pytest.raises(BadRequest):
        decode(encode(msgspec.structs.replace(HOP, digest="sha256:short")).encode())
