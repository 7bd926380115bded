"""Routers: what a definition, a fitted model or a request to one may cost the others."""

import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.bounds import USUAL, Bounds
from registry.recipes.router import CREDENTIALS, RouterSpec
from registry.state.database import State
from routing.intents.model import to_bytes
from routing.intents.training import Example, TrainingOptions, train
from runtime.http.guard.keys import KEY_HEADERS
from runtime.http.routing import endpoints
from tests.unit.http.fakes import FakeGateway, application

TARGETS = [{"name": "chat"}]
BOMB = "((a{1,100})|b){1,9}[\\pL]{50}"
"""60 ms to compile, where a MiB of memory is allowed."""


def router(**more: Any) -> dict[str, Any]:
    return {"id": "auto", "targets": TARGETS, **more}


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A server that keeps routers."""
    with State(tmp_path / "state") as state:
        gateway = FakeGateway(tmp_path, state=state, max_json=64 << 20)
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


@pytest.mark.parametrize(
    "more",
    [
        {"rules": [{"name": "r", "when": {"headers": {f"h{i}": f"{BOMB}{i}" for i in range(2_000)}}, "to": ["chat"]}]},
        {"rules": [{"name": "r", "when": {"headers": {"h": BOMB}}, "to": ["chat"]}]},
        {"rules": [{"name": "r", "to": ["chat"] * 500_000}]},
        {"rules": [{"name": "r", "when": {"team": ["t"] * 500_000}, "to": ["chat"]}]},
        {"rules": [{"name": f"r{i}", "to": ["chat"]} for i in range(50_000)]},
        {"intents": {"routes": {f"i{i}": ["chat"] for i in range(100_000)}}},
        {"fallbacks": ["chat"] * 500_000},
        {"targets": [{"name": f"t{i}"} for i in range(50_000)]},
        {"targets": [{"name": "auto"}], "default": "nobody"},
        {"source": {"path": "/etc"}},
    ],
    ids=["patterns", "pattern", "to", "words", "rules", "intents", "fallbacks", "targets", "default", "source"],
)
async def test_a_definition_is_refused_before_it_costs(kept: httpx.AsyncClient, more: dict[str, Any]) -> None:
    """2,000 patterns took 90 s of the loop that feeds all streams, 500,000 targets of a rule 14 s."""
    began = time.process_time()
    answer = await kept.post("/v1/routers", json=router(**more))
    assert answer.status_code in (400, 422), answer.text[:500]
    assert len(answer.content) <= 8192
    assert time.process_time() - began < 10


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"])
async def test_no_rule_looks_at_a_callers_key(kept: httpx.AsyncClient, name: str) -> None:
    """Else who defines routers reads it letter by letter, by where requests go."""
    when = {"headers": {name: "^Bearer rh-a"}}
    answer = await kept.post("/v1/routers", json=router(rules=[{"name": "r", "when": when, "to": ["chat"]}]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_router"), answer.text
    assert f"'{name}' holds the caller's key" in answer.text


def test_every_header_that_may_hold_a_key_is_out_of_reach() -> None:
    assert {name.decode() for name in KEY_HEADERS} | {"cookie"} <= CREDENTIALS


async def test_the_most_that_a_definition_may_have_is_taken(kept: httpx.AsyncClient) -> None:
    names = [f"t{i}" for i in range(1_000)]
    headers = {f"h{i}": f"^(a|b){{1,50}}[a-z0-9]+{i}$" for i in range(200)}
    more = {
        "targets": [{"name": name} for name in [*names[:-1], "chat"]],
        "rules": [{"name": "r", "when": {"headers": headers}, "to": [*names[:-1], "chat"]}],
    }
    answer = await kept.post("/v1/routers", json=router(**more))
    assert answer.status_code == 201, answer.text
    chosen = await kept.post("/v1/route", json={"model": "auto", "messages": [{"role": "user", "content": "a"}]})
    assert chosen.json()["target"] == "chat", chosen.text[:500]


@pytest.mark.parametrize(
    ("bound", "more"),
    [
        ("router_targets", {"targets": [{"name": "chat"}, {"name": "b"}, {"name": "c"}]}),
        ("router_targets", {"fallbacks": ["chat"] * 3}),
        ("router_rules", {"rules": [{"name": name, "to": ["chat"]} for name in "abc"]}),
        ("router_patterns", {"rules": [{"name": "r", "when": {"headers": dict.fromkeys("abc", "x")}, "to": ["chat"]}]}),
        ("router_intents", {"intents": {"routes": {name: ["chat"] for name in "abc"}}}),
    ],
)
async def test_an_error_names_its_bound_and_the_option(tmp_path: Path, bound: str, more: dict[str, Any]) -> None:
    with State(tmp_path / "state") as state:
        for most, status in ((2, 422), (3, 201)):
            gateway = FakeGateway(tmp_path, state=state, bounds=Bounds.model_validate({bound: most}))
            transport = httpx.ASGITransport(app=application(gateway))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                answer = await client.post("/v1/routers", json=router(**more))
            assert answer.status_code == status, answer.text
            assert (f"bound {bound}, see --bounds-factor" in answer.text) == (status == 422)
    assert RouterSpec.model_validate(router(**more)), "what the operator wrote in a file, or was taken before, is read"


async def test_a_router_may_not_send_to_routers(kept: httpx.AsyncClient) -> None:
    """Neither a circle nor a chain: a router's name is refused as a target, and is nobody's if it became one later."""
    for name, to, status in (("a", "b", 201), ("b", "a", 422), ("self", "self", 422), ("b", "c", 201)):
        made = await kept.post("/v1/routers", json={"id": name, "targets": [{"name": to}]})
        assert made.status_code == status, made.text
    for name in ("a", "b", "a@v1"):
        body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
        for path in ("/v1/chat/completions", "/v1/route"):
            answer = await kept.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_route"), answer.text
            assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("role", ["system", "developer", "user"])
async def test_a_hundred_thousand_messages_to_a_router(kept: httpx.AsyncClient, role: str) -> None:
    """100,000 of them (4 MB) took 2 s, as their texts were joined one by one; 400,000, which a server may be set to
    take, sixteen times that.
    """
    assert (await kept.post("/v1/routers", json=router())).status_code == 201
    messages = [{"role": role, "content": "abcdefghij"}] * 400_000
    body = json.dumps({"model": "auto", "messages": messages}).encode()
    began = time.process_time()
    answer = await kept.post("/v1/route", content=body, headers={"Content-Type": "application/json"})
    assert answer.json()["target"] == "chat", answer.text[:300]
    assert time.process_time() - began < 10


def fitted() -> bytes:
    examples = [Example(f"will it {word} tomorrow", label) for word in ("rain", "snow", "hail") for label in ("a", "b")]
    return to_bytes(train(examples, examples, options=TrainingOptions(iterations=2, typos=False)).model)


def hostile_models() -> dict[str, bytes]:
    good = fitted()
    size = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + size])
    rest = good[8 + size :]

    def with_header(change: Any) -> bytes:
        changed = json.dumps(change).encode()
        return len(changed).to_bytes(8, "little") + changed + rest

    reported = json.loads(header["__metadata__"]["roundhouse"])
    shape = {**header["letters"], "shape": [1 << 31, 1 << 31]}
    return {
        "nothing": b"",
        "eight bytes": b"\xff" * 8,
        "a header of 2^63 bytes": (1 << 63).to_bytes(8, "little") + good[8:],
        "a pickle": b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        "an npz": b"PK\x03\x04" + bytes(100),
        "a deep header": (20_000).to_bytes(8, "little") + b'{"a":' * 4_000,
        "a shape of 2^62": with_header({**header, "letters": shape}),
        "no letters": with_header({key: value for key, value in header.items() if key != "letters"}),
        "no tensors": with_header({"__metadata__": header["__metadata__"]}),
        "offsets of others": with_header({**header, "idf": {**header["idf"], "data_offsets": [0, 1 << 40]}}),
        "labels without end": with_header(
            {**header, "__metadata__": {"roundhouse": json.dumps({**reported, "labels": ["a"] * 100_000})}}
        ),
        "a threshold of ten": with_header(
            {
                **header,
                "__metadata__": {
                    "roundhouse": json.dumps({**reported, "alone": {**reported["alone"], "threshold": 10}})
                },
            }
        ),
        "cut": good[: len(good) // 2],
    }


@pytest.mark.parametrize("what", sorted(hostile_models()))
async def test_a_crafted_model_is_refused_and_the_router_goes_on(kept: httpx.AsyncClient, what: str) -> None:
    assert (await kept.post("/v1/routers", json=router(intents={"routes": {"a": ["chat"]}}))).status_code == 201
    text = base64.b64encode(hostile_models()[what]).decode()
    answer = await kept.put("/v1/routers/auto/fitted/intents", json={"safetensors": text})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_router_model"), answer.text
    assert (await kept.get("/v1/routers/auto")).json()["version"] == "v1"


async def test_a_fitted_model_is_converted_in_parts(kept: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits for each of them."""
    lengths = list[int]()

    def counted(convert: Callable[..., bytes]) -> Callable[..., bytes]:
        def counting(data: str | bytes, **options: Any) -> bytes:
            lengths.append(len(data))
            return convert(data, **options)

        return counting

    model = base64.b64encode(fitted()).decode()
    monkeypatch.setattr(endpoints, "PART", 1 << 10)
    monkeypatch.setattr(base64, "b64decode", counted(base64.b64decode))
    monkeypatch.setattr(base64, "b64encode", counted(base64.b64encode))
    assert (await kept.post("/v1/routers", json=router(intents={"routes": {"a": ["chat"]}}))).status_code == 201
    path = "/v1/routers/auto/fitted/intents"
    assert (await kept.put(path, json={"safetensors": model})).status_code == 201
    assert (await kept.get(path)).json()["safetensors"] == model
    assert len(lengths) >= 2 * len(model) // (1 << 10)
    assert max(lengths) <= 1 << 10
    for text in ("AA==" + "A" * 2000, "A" * 1020 + "AA==" + "A" * 2000, "A" * 1025, "A" * 2002):
        answer = await kept.put(path, json={"safetensors": text})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "safetensors"), text


async def test_versions_have_a_bound_together_and_files_are_read_once(tmp_path: Path) -> None:
    """Each fit is a version on the disk, and in memory once it is asked for."""
    with State(tmp_path / "state") as state:
        gateway = FakeGateway(tmp_path, state=state, bounds=("routers_bytes=3000000",))
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=application(gateway)), base_url="http://test")
        assert (await client.post("/v1/routers", json=router(intents={"routes": {"a": ["chat"]}}))).status_code == 201
        model = {"safetensors": base64.b64encode(fitted()).decode()}
        assert (await client.put("/v1/routers/auto/fitted/intents", json=model)).status_code == 201
        for number in range(3_000_000 // len(fitted()) + 2):  # each keeps what was fitted for the one before
            answer = await client.post("/v1/routers", json=router(description=str(number)))
            if answer.status_code != 201:
                break
        assert answer.status_code == 413, answer.text
        assert "routers_bytes" in answer.json()["error"]["message"]
        assert sum(file.stat().st_size for file in (tmp_path / "routers").rglob("*")) < 4_000_000
        again = FakeGateway(tmp_path, state=state)
        await again.routers.open([])
        assert again.routers._ready, "those that count are read at the start"
        versions = again.routers.show("auto").versions
        assert await again.routers.ready(f"auto@{versions[0].version}") is not None
        await client.aclose()


def test_the_bound_of_patterns_is_checked_before_one_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.recipes.router.compiled", lambda _: pytest.fail("compiled"))
    headers = {f"h{i}": "a" for i in range(201)}
    with pytest.raises(ValueError, match="patterns of headers in all rules: 201, and at most 200"):
        RouterSpec.model_validate(
            router(rules=[{"name": "r", "when": {"headers": headers}, "to": ["chat"]}]), context=USUAL
        )
