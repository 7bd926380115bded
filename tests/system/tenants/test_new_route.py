"""test_every_route.py covers a new route in the table without changes, with a seed or without."""

import dataclasses
import json
from collections.abc import Callable, Sequence

import httpx
import pytest

from runtime.http.route import ROUTES, Route
from tests.fuzz.corpus import Raw
from tests.system.tenants.test_every_route import ALIAS, OWN, STEP, Owned, check_route, seed_of

OWNED = Owned("sha256:" + "ab" * 32, "req-0123456789abcdef", "k1234567")
PATH = "/v1/toys/{name}"
EXAMPLES = {"first": {"toy": "a-toy", "parts": [{"adapter": "another"}]}}


@pytest.fixture
def route() -> Route:
    listed = next(one for one in ROUTES if not one.is_inference)
    return dataclasses.replace(listed, method="POST", path=PATH, examples=EXAMPLES, is_inference=False)


def leaky(raw: Raw) -> httpx.Response:
    """Show an alias to any team that names an adapter in a form part."""
    body = json.loads(raw.body)
    parts = body.get("parts", []) if isinstance(body, dict) else []
    names = [str(part.get("adapter")) for part in parts if isinstance(part, dict)]
    return httpx.Response(200, text=ALIAS if any(OWN in name for name in names) else "nothing")


def check_with_each_spelling(route: Route, seeds: Sequence[Raw], send: Callable[[Raw], httpx.Response]) -> int:
    return sum(check_route(route, seeds, OWNED, send, first) for first in range(STEP))


def test_a_route_without_a_seed_is_sent_names_in_its_path_and_in_each_field(route: Route) -> None:
    sent: list[Raw] = []

    def note(raw: Raw) -> httpx.Response:
        sent.append(raw)
        return httpx.Response(404, text="unknown")

    count = check_with_each_spelling(route, (), note)
    assert count == len(sent) > 100
    assert any(OWN in raw.target for raw in sent)
    for field in ("toy", "adapter"):
        assert any(f'"{field}": "{OWN}"' in raw.body for raw in sent), field


@pytest.mark.parametrize("has_seed", [False, True])
def test_a_new_route_that_shows_what_another_team_owns_fails(route: Route, has_seed: bool) -> None:
    seeds = [seed_of(route)] if has_seed else []
    with pytest.raises(AssertionError, match=f"{ALIAS}.*/v1/toys"):
        check_with_each_spelling(route, seeds, leaky)


def test_a_route_that_answers_500_fails(route: Route) -> None:
    with pytest.raises(AssertionError, match="500"):
        check_route(route, (), OWNED, lambda _: httpx.Response(500), 0)


def test_a_request_can_be_made_to_every_route_of_the_table() -> None:
    for route in ROUTES:
        check_route(route, (), OWNED, lambda _: httpx.Response(404), 0)
