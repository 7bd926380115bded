"""Actions of pages refuse bodies that no page sends, and never fail with a 500."""

import json
from collections.abc import Iterator

import pytest

from tests.fuzz.corpus import SEEDS, Raw, read
from tests.unit.console.conftest import ORIGIN, Console

ACTIONS = [raw for raw in read(SEEDS) if raw.method == "POST" and raw.path.startswith("/console/")]
VALUES = (
    "null", "true", "-1", "0", "1e308", "9" * 400, '""', '"\xb6"', '"\\u0000"', f'"{"x" * 5000}"', '"a b"', "[[1]]",
    '[{"a": 1}]', '{"a": []}', "[" * 5000 + "]" * 5000,
)  # fmt: skip


def bodies(seed: Raw) -> Iterator[bytes]:
    """Return bodies in latin-1, so that some are no UTF-8."""
    given = json.loads(seed.body)
    for name in given:
        for value in VALUES:
            others = {key: json.dumps(other) for key, other in given.items()} | {name: value}
            yield ("{" + ", ".join(f'"{key}": {text}' for key, text in others.items()) + "}").encode("latin-1")
    yield from (text.encode("latin-1") for text in ("", *VALUES))


@pytest.mark.parametrize("seed", ACTIONS, ids=lambda seed: seed.path)
async def test_a_body_that_no_page_sends_is_refused(console: Console, seed: Raw) -> None:
    async with console() as displayed:
        for body in bodies(seed):
            headers = {"Content-Type": "application/json"}
            answer = await displayed.client.post(seed.path, content=body, headers=headers)
            assert answer.status_code < 500, (body[:200], answer.text)
            assert answer.status_code == 200 or answer.json()["error"]["message"], body[:200]


async def test_an_unknown_part_is_an_ordinary_404(console: Console) -> None:
    async with console() as displayed:
        answer = await displayed.client.get("/console/teams?part=none")
        assert (answer.status_code, answer.headers["hx-reswap"]) == (404, "none")
        assert answer.json()["error"]["code"] == "unknown_path"


async def test_a_part_of_the_list_of_requests_needs_no_single_one(console: Console) -> None:
    async with console() as displayed:
        answer = await displayed.client.get("/console/requests?part=rows&id=req-1")
        assert (answer.status_code, "No request has ended yet" in answer.text) == (200, True)


@pytest.mark.parametrize("models", ["", " , ", ",,"])
async def test_a_list_without_any_pattern_does_not_open_all_models(console: Console, models: str) -> None:
    new = {"team": "default", "name": "", "scopes": ["infer"], "models": models}
    async with console() as displayed:
        answer = await displayed.client.post("/console/teams/key", json=new, headers=ORIGIN)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "models")
