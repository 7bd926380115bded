"""No spelling of a name leads a team to another team's objects, on any route of the route table.

The requests are the fuzzer's seeds, of which every route has one. Each name in their paths, queries, forms and bodies
is replaced by each spelling of what team `search` owns, and team `speech` sends it. A new route without a seed is
covered by its path and the examples in its document (test_new_route.py).
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest

from runtime.http.route import ROUTES, Route
from tests.eventually import eventually
from tests.fuzz.corpus import SEEDS, Raw, read
from tests.system.serving import Server
from tests.system.test_adapters import new_content

pytestmark = pytest.mark.real
SCOPES = "infer,models,adapters,paths,usage"
OWN, ALIAS = "privy", "closed-alias"
CANARY = "nightingale"
"""A word of the owner's requests."""
WORDS = {
    *("content", "text", "prompt", "input", "inputs", "query", "queries", "texts", "documents", "instructions"),
    "system",
}
"""Fields with texts for a model, which name nothing."""
NAME = re.compile(r"(starter-|fuzz-|req-|uppercase|rot13|acronym|iso-date|auto|default).*|")
"""Names in the seeds, or an omitted name. In calls that run a model, only these are replaced."""
STORED = re.compile(r"(file-|batch_|msgbatch_|webhook_|resp_)\w+(-output)?")
"""Ids of files, batches, webhooks and responses in the seeds."""
LEFT_OUT = {
    "/v1/recipes/reload": "what all teams share changes",
    "/metrics": "the operator's: its labels name what every team has",
}
"""Calls that a team's scopes allow on purpose."""
STEP = 1 if os.environ.get("ROUTE_SPELLINGS") == "all" else 13
"""Each place gets every 13th spelling, the next place the ones after these. In the long form each place gets all."""


class Owned(NamedTuple):
    """What team `search` owns, and texts that would reveal it."""

    digest: str
    request: str
    key: str

    def spellings(self) -> list[str]:
        """Return ways to write the adapter's name, its team, key and request."""
        hexadecimal = self.digest.removeprefix("sha256:")
        plain = [
            OWN, f"search/{OWN}", f"{OWN}@v1", f"search/{OWN}@v1", f"{OWN}@{ALIAS}", f"search/{OWN}@{ALIAS}",
            f"starter-chat:{OWN}", f"starter-chat:search/{OWN}", f"starter-chat:search/{OWN}@v1",
            f"starter-chat:search/{OWN}@{ALIAS}", f"search/{OWN}:latest", f"starter-chat/search/{OWN}",
        ]  # fmt: skip
        by_digest = [
            self.digest, hexadecimal, f"{OWN}@{self.digest}", f"search/{OWN}@{self.digest}",
            f"starter-chat:search/{OWN}@{self.digest}", f"starter-chat@{self.digest}", f"store/{hexadecimal}",
        ]  # fmt: skip
        odd = [
            f"SEARCH/{OWN.upper()}", f"Search/{OWN}", f"search%2F{OWN}", f"search%252F{OWN}", f"./search/{OWN}",
            f"speech/../search/{OWN}", f"../search/{OWN}", f"search//{OWN}", f"/search/{OWN}", f"search/{OWN}/",
            f"search/{OWN} ", f" search/{OWN}", f"search/{OWN}\u200b", f"search/{OWN}\x00", f"search\\{OWN}",
            f"search\uff0f{OWN}", f"\uff53earch/{OWN}", "search/pri\u0475y", f"search/{OWN}.", f"search;/{OWN}",
        ]  # fmt: skip
        return [*plain, *by_digest, *odd, "search", self.request, self.key]


def _client(server: Server, team: str) -> httpx.Client:
    server.command("teams", "create", team)
    value = server.command("keys", "create", "--team", team, "--scopes", SCOPES)["value"]
    client = httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {value}"}, timeout=600)
    eventually(lambda: client.get("/v1/models").status_code == 200)
    return client


def _owned(owner: httpx.Client, folder: Path) -> Owned:
    """Make the team's objects, with content that no other team has, unlike the starter pack's."""
    body = {"name": OWN, "base": "starter-chat", "source": {"path": str(new_content(folder, 1.25))}}
    assert owner.post("/v1/adapters", json=body).status_code == 201
    assert owner.put(f"/v1/adapters/{OWN}/aliases/{ALIAS}", json={"version": "v1"}).status_code == 200
    answer = _chat(owner)
    row = owner.get(f"/v1/requests/{answer.headers['x-request-id']}").json()["ledger"][0]
    return Owned(owner.get(f"/v1/adapters/{OWN}").json()["digest"], answer.headers["x-request-id"], row["key"])


def _chat(owner: httpx.Client) -> httpx.Response:
    messages = [{"role": "user", "content": CANARY}]
    answer = owner.post("/v1/chat/completions", json={"model": OWN, "messages": messages, "temperature": 0})
    assert answer.json()["choices"][0]["message"]["content"] == CANARY.upper(), answer.text
    return answer


def _state(owner: httpx.Client) -> Any:
    """Return what the owner sees of its own objects, without usage counts."""
    adapter = owner.get(f"/v1/adapters/{OWN}").json()
    visible = {name: adapter.get(name) for name in ("digest", "version", "versions", "aliases", "shared", "pinned")}
    return visible, sorted(a["name"] for a in owner.get("/v1/adapters").json()["data"]), _names(owner)


def _names(owner: httpx.Client) -> list[str]:
    return [name for name in (m["id"] for m in owner.get("/v1/models").json()["data"]) if OWN in name]


# --- every name of a seed, replaced ----------------------------------------------------------------------------------
def _matches(route: Route, seed: Raw) -> "re.Match[str] | None":
    path = re.escape(route.path)
    path = re.sub(r"\\\{(\w+)(:path)?\\\}", lambda m: f"(?P<{m[1]}>{'.+' if m[2] else '[^/]+'})", path)
    return re.fullmatch(path, seed.target.partition("?")[0]) if route.method == seed.method else None


def _leaves(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _leaves(one, (*where, name))
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from _leaves(one, (*where, place))
    elif isinstance(value, str) and not WORDS & set(where):
        yield where


def _replaced(value: Any, where: tuple[Any, ...], by: str) -> Any:
    if not where:
        return by
    copy = value.copy()
    copy[where[0]] = _replaced(value[where[0]], where[1:], by)
    return copy


def _variants(route: Route, seed: Raw, match: "re.Match[str]") -> Iterator[tuple[str, Callable[[str], Raw]]]:
    """Yield each place of a name in a seed, with a function that makes a request with another name there."""
    path, _, query = seed.target.partition("?")
    for name in match.groupdict():
        begin, end = match.span(name)
        for kind, escape in (("encoded", lambda text: quote(text, safe="")), ("path", lambda text: quote(text, "/@:"))):
            yield (
                f"{name} {kind}",
                lambda text, b=begin, e=end, escape=escape: Raw(
                    seed.method, f"{path[:b]}{escape(text)}{path[e:]}?{query}".rstrip("?"), seed.headers, seed.body
                ),
            )
    for name in ("model", "team_id", "adapter", "adapter_id", "base", *(p.partition("=")[0] for p in query.split("&"))):
        if name:
            yield (
                f"?{name}",
                lambda text, name=name: Raw(
                    seed.method, f"{path}?{name}={quote(text, safe='')}", seed.headers, seed.body
                ),
            )
    kind = dict(seed.headers).get("Content-Type", "")
    if kind == "application/json":
        body = json.loads(seed.body)
        for where in _leaves({"adapter_id": "", "cache_salt": "", **body} if route.is_inference else body):
            value: Any = {"adapter_id": "", "cache_salt": "", **body}
            for step in where:
                value = value[step]
            if route.is_inference and not NAME.fullmatch(value):
                continue
            yield ".".join(map(str, where)), lambda text, where=where: Raw(
                seed.method, seed.target, seed.headers,
                json.dumps(_replaced(body, where, text) if where[0] in body else {**body, where[0]: text}),
            )  # fmt: skip
    elif kind.startswith("multipart/"):
        for field in re.finditer(r'name="(\w+)"\r\n\r\n([^\r]*)', seed.body):
            begin, end = field.span(2)
            yield field[1], lambda text, b=begin, e=end: Raw(
                seed.method, seed.target, seed.headers,
                seed.body[:b] + text.encode().decode("latin-1") + seed.body[e:],
            )  # fmt: skip


def _send(client: httpx.Client, raw: Raw) -> httpx.Response | None:
    """Send a request. Returns None if no HTTP client could send it."""
    try:
        return client.request(raw.method, raw.target, content=raw.body.encode("latin-1"), headers=dict(raw.headers))
    except (httpx.InvalidURL, UnicodeEncodeError):
        return None


def seed_of(route: Route) -> Raw:
    """Return a request to a route without a seed, from its path and the first example in its document."""
    target = re.sub(r"\{\w+(:path)?\}", "x", route.path)
    headers = (("Content-Type", "application/json"),) if route.examples else ()
    return Raw(route.method, target, headers, json.dumps(next(iter(route.examples.values()), "")))


def check_route(
    route: Route, seeds: Sequence[Raw], owned: Owned, send: Callable[[Raw], httpx.Response | None], first: int
) -> int:
    """Send every name in every place. Returns the number of requests. Fails if an answer reveals another team's
    objects.

    first: where the spellings of the first place begin.
    """
    if route.path in LEFT_OUT:
        return 0
    marks = {owned.digest[7:], ALIAS, CANARY, CANARY.upper(), owned.request, owned.key, f"search/{OWN}"}
    places, spellings, count = dict[str, Callable[[str], Raw]](), owned.spellings(), 0
    matching = [(seed, match) for seed in seeds if (match := _matches(route, seed)) is not None]
    if not matching:
        seed = seed_of(route)
        match = _matches(route, seed)
        assert match is not None, f"no request to {route.method} {route.path} can be made"
        matching = [(seed, match)]
    for seed, match in matching:
        for place, make in _variants(route, seed, match):
            places.setdefault(place, make)
    for number, (place, make) in enumerate(places.items(), first):
        for spelling in spellings[number % STEP :: STEP]:
            raw = make(spelling)
            answer = send(raw)
            if answer is None:
                continue
            count += 1
            seen = f"{answer.headers} {answer.text}"
            sent = f"{raw.target} {raw.body} {spelling}"
            leaked = [mark for mark in marks if mark in seen and mark not in sent]
            what = f"{route.method} {route.path}, {place} = {spelling!r}: {answer.status_code} {seen[:600]}"
            assert answer.status_code != 500, what
            assert not leaked, f"{leaked} in {what}"
            assert owned.digest[7:] in sent or owned.digest[7:] not in str(answer.headers), what
    return count


def test_no_route_leads_a_team_to_what_another_owns(locked: Server) -> None:
    owner, other = _client(locked, "search"), _client(locked, "speech")
    owned, seeds = _owned(owner, locked.data.parent / "own"), read(SEEDS)
    before = _state(owner)
    for number, route in enumerate(ROUTES):
        check_route(route, seeds, owned, lambda raw: _send(other, raw), number)
        assert _state(owner) == before, f"{route.method} {route.path} changed what another team owns"
    _chat(owner)
    rows = owner.get("/v1/usage", params={"group_by": "team", "from": "2026-01-01"}).json()["data"]
    assert [(row["team_id"], row["requests"]) for row in rows] == [("search", 2)]


# --- what a team stores ----------------------------------------------------------------------------------------------
def _batches(owner: httpx.Client) -> tuple[str, ...]:
    """Run a batch of each surface. Returns the ids of the file, both batches and the output."""
    body = {"model": "starter-chat", "messages": [{"role": "user", "content": CANARY}], "max_tokens": 4}
    line = {"custom_id": CANARY, "method": "POST", "url": "/v1/chat/completions", "body": body}
    form = {"purpose": "batch"}
    file = owner.post("/v1/files", data=form, files={"file": (f"{CANARY}.jsonl", json.dumps(line))}).json()["id"]
    new = {"input_file_id": file, "endpoint": line["url"], "completion_window": "24h"}
    batch = owner.post("/v1/batches", json=new).json()["id"]
    requests = [{"custom_id": CANARY, "params": body}]
    messages = owner.post("/v1/messages/batches", json={"requests": requests}).json()["id"]
    eventually(lambda: owner.get(f"/v1/batches/{batch}").json()["status"] == "completed")
    eventually(lambda: owner.get(f"/v1/messages/batches/{messages}").json()["processing_status"] == "ended")
    assert CANARY in owner.get(f"/v1/messages/batches/{messages}/results").text
    return file, batch, str(owner.get(f"/v1/batches/{batch}").json()["output_file_id"]), messages


def _webhook(owner: httpx.Client) -> str:
    new = {"name": CANARY, "url": "https://93.184.216.34/hook", "event_types": ["batch.failed"]}
    return str(owner.post("/v1/webhook_endpoints", json=new).json()["id"])


def _response(owner: httpx.Client) -> str:
    """Store a response when the server knows that the team stores them. Returns its id."""
    body = {"model": "starter-chat", "input": CANARY, "max_output_tokens": 4}
    stored = dict[str, Any]()

    def store() -> bool:
        stored.update(owner.post("/v1/responses", json=body).json())
        return bool(stored["store"])

    eventually(store)
    return str(stored["id"])


def _stored_state(owner: httpx.Client, response: str) -> Any:
    """Return what the owner sees of its files, batches, webhooks and a response."""
    lists = ("/v1/files", "/v1/batches", "/v1/messages/batches", "/v1/webhook_endpoints")
    answers = [owner.get(path) for path in (*lists, f"/v1/responses/{response}")]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    return [answer.json() for answer in answers]


def test_no_seed_leads_a_team_to_what_another_stores(locked: Server) -> None:
    """Each seed with the id of a file, batch, webhook or response gets each of another team's ids instead."""
    owner, other = _client(locked, "legal"), _client(locked, "sales")
    locked.command("teams", "edit", "legal", "--store-responses", "1")
    stored = (*_batches(owner), _webhook(owner), _response(owner))
    before, number = _stored_state(owner, stored[-1]), 0
    for seed in read(SEEDS):
        if STORED.search(seed.target) is None and STORED.search(seed.body) is None:
            continue
        for id_ in stored:
            raw = Raw(seed.method, STORED.sub(id_, seed.target), seed.headers, STORED.sub(id_, seed.body))
            answer = _send(other, raw)
            assert answer is not None
            number += 1
            seen, sent = f"{answer.headers} {answer.text}", f"{raw.target} {raw.body}"
            leaked = [mark for mark in (CANARY, *stored) if mark in seen and mark not in sent]
            assert not leaked, f"{leaked} in {raw}: {answer.status_code} {seen[:600]}"
            assert answer.status_code < 500, f"{raw}: {answer.text}"
    assert number > 100
    assert _stored_state(owner, stored[-1]) == before
