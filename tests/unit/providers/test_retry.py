"""Retries: their delay, their number, and the errors that allow them."""

import json
from pathlib import Path
from typing import Any

import pytest

from registry.errors import BadRequest, ProviderBusy, ProviderFailed
from routing.providers import upstream
from routing.providers.faults import failure, is_the_clients
from routing.providers.faults import retry_after as read_after
from routing.providers.upstream import Upstream
from runtime.http import errors as http_errors
from runtime.http import serving
from tests.fakes import traces
from tests.fakes.provider import Play, Seen
from tests.unit.providers.rig import rigged, rigged_with


@pytest.mark.parametrize(
    ("attempt", "after", "left", "chance", "seconds"),
    [
        (1, None, None, 0.0, 0.125),
        (1, None, None, 1.0, 0.25),
        (3, None, None, 1.0, 1.0),
        (99, None, None, 1.0, 8.0),
        (1, 3.0, None, 0.0, 3.0),
        (1, 20.0, None, 0.0, 20.0),
        (1, 20.1, None, 0.0, None),
        (1, 3.0, 3.0, 0.0, None),
        (1, None, 0.1, 0.0, None),
        (1, None, 10.0, 0.0, 0.125),
    ],
)
def test_the_delay_grows_and_respects_retry_after_and_deadline(
    attempt: int, after: float | None, left: float | None, chance: float, seconds: float | None
) -> None:
    assert upstream.retry_delay(attempt, after, left, chance) == seconds


def test_retries_are_at_most_a_tenth_of_the_traffic() -> None:
    budget, taken = upstream.RetryBudget(), 0
    for _ in range(1000):
        budget.record_request()
        taken += budget.take()
    assert taken <= 1000 * upstream.SHARE + 1
    for _ in range(1000):
        budget.record_request()
    assert sum(budget.take() for _ in range(1000)) == upstream.SAVED


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Mon, 23 Nov 2026 12:00:09 GMT", "date": "Mon, 23 Nov 2026 12:00:00 GMT"}, 9.0),
        ({"retry-after": "Mon, 23 Nov 2026 12:00:09 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_each_form(headers: dict[str, str], seconds: float | None) -> None:
    assert read_after(headers) == seconds


MONEY = b'{"type":"error","error":{"type":"billing_error","message":"m"}}'


@pytest.mark.parametrize(
    ("status", "body", "headers", "code", "again", "counts"),
    [
        (429, b"", {}, "provider_busy", True, False),
        (429, b"", {"x-should-retry": "false"}, "provider_busy", False, False),
        (429, MONEY, {}, "provider_no_credit", False, False),
        (400, MONEY, {}, "provider_no_credit", False, False),
        (402, b"<html>", {}, "provider_no_credit", False, False),
        (402, b"", {"retry-after": "9"}, "provider_busy", True, False),
        (403, b"", {}, "provider_key", False, False),
        (404, b"", {}, "provider_model", False, False),
        (404, b'{"error":{"param":"model"}}', {}, "provider_model", False, False),
        (410, b'{"error":"deprecated"}', {}, "provider_model", False, False),
        (424, b"", {}, "provider_failed", True, True),
        (498, b'{"error":{"type":"capacity_exceeded"}}', {}, "provider_overloaded", True, True),
        (408, b"", {}, "provider_failed", True, True),
        (500, b'{"error":"text"}', {}, "provider_failed", True, True),
        (529, b"", {}, "provider_overloaded", True, True),
        (307, b"", {}, "provider_answer", False, True),
        (400, b'{"error":{"code":"invalid_api_key"}}', {}, "provider_key", False, False),
        (400, b'[{"error":{"code":400,"details":[{"reason":"API_KEY_INVALID"}]}}]', {}, "provider_key", False, False),
        (200, b'{"error":{"type":"rate_limit_error"}}', {}, "provider_busy", True, False),
        (200, b'{"error":{"type":"invalid_request_error","code":"requests"}}', {}, "provider_busy", True, False),
        (200, b'{"error":{"type":"invalid_request_error","code":"invalid_api_key"}}', {}, "provider_key", False, False),
        (200, b'{"error":{"code":429,"message":"m"}}', {}, "provider_busy", True, False),
        (200, b'{"error":{"code":503,"message":"m"}}', {}, "provider_overloaded", True, True),
        (200, b'{"error":{"code":1302,"message":"m"}}', {}, "provider_failed", True, True),
    ],
)  # fmt: skip
def test_failures_are_classified(
    status: int, body: bytes, headers: dict[str, str], code: str, again: bool, counts: bool
) -> None:
    found = failure("x", status, body, headers)
    assert (found.code, found.again, found.counts) == (code, again, counts)
    assert (http_errors.headers(found).get("x-should-retry") != "false") == (again or counts)
    assert not is_the_clients(status, body)


@pytest.mark.parametrize("status", [400, 405, 413, 415, 422])
def test_the_clients_faults_are_recognised(status: int) -> None:
    assert is_the_clients(status, b'{"error":{"type":"invalid_request_error"}}')
    assert is_the_clients(200, b'{"error":{"code":%d}}' % status)
    assert is_the_clients(200, b'{"error":{"code":"invalid_image_url"}}')


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, b'{"error":{"code":403,"message":"m","metadata":{"reasons":["violence"],"flagged_input":"x"}}}'),
        (403, b'{"error":{"code":403,"message":"m","metadata":{"patterns":["ignore all"]}}}'),
        (404, b'{"error":{"message":"no item rs_1","type":"invalid_request_error","param":"input","code":null}}'),
    ],
    ids=["OpenRouter's moderation", "OpenRouter's guardrails", "OpenAI's items"],
)
async def test_a_refusal_of_the_content_is_the_clients_fault(tmp_path: Path, status: int, body: bytes) -> None:
    """The operator was told to look at the key or the recipe."""
    assert is_the_clients(status, body)
    async with rigged(tmp_path, lambda seen: Play([body], status=status)) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["message"]) == (status, json.loads(body)["error"]["message"])


def test_retries_are_limited_to_retryable_errors_and_the_budget() -> None:
    upstream = Upstream(_provider(retries=2), chance=lambda: 0.0)
    upstream.enter(first=True)
    assert upstream.again(BadRequest("x"), 1, None) is None
    assert upstream.again(ProviderFailed("x", again=False), 1, None) is None
    assert upstream.again(ProviderFailed("x", again=True), 3, None) is None
    assert upstream.again(ProviderBusy("x", again=True, retry_after=2), 2, None) == 2
    assert upstream.again(ProviderFailed("x", again=True), 1, None) is None, "the budget is used up"


def _provider(**more: Any) -> Any:
    from registry.recipes.provider import Provider

    given = {"id": "x", "version": 1, "protocol": "openai", "base_url": "https://x.example", "models": [{"name": "m"}]}
    return Provider.model_validate({**given, **more})


async def test_a_retry_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "FIRST_SECONDS", 0.001)

    def script(seen: Seen) -> Play:
        return traces.error(500) if len(rig.fake.seen) == 1 else traces.chat("big")

    async with rigged(tmp_path, script, retries=2) as rig:
        found = await rig.chat()
        assert found.status_code == 200
        assert len(rig.fake.seen) == 2
        assert found.headers["x-roundhouse-failed-attempts"] == "there/big provider_failed"


@pytest.mark.parametrize("is_fallback", [False, True])
async def test_a_failing_provider_gets_at_most_a_tenth_more_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fallback: bool
) -> None:
    """The provider always fails in a way that its breaker does not count. Traffic as a fall-back counts, too."""
    monkeypatch.setattr(upstream, "FIRST_SECONDS", 0.0)
    if is_fallback:
        fall_back_to(monkeypatch, "there/big")
    scripts: Any = {
        "first": (lambda seen: traces.error(402), "openai", {}),
        "there": (lambda seen: traces.error(429), "openai", {"retries": 2}),
    }
    requests = 100
    async with rigged_with(tmp_path, scripts) as rig:
        for _ in range(requests):
            found = await rig.chat("first/big" if is_fallback else "there/big")
            assert found.json()["error"]["code"] == "provider_busy"
        arrived = len(rig.fakes[1].seen)
    assert requests * 1.08 < arrived <= requests * 1.1 + 1


async def test_attempts_at_a_fallback_do_not_count_as_retries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last fall-back may be retried as often as its own recipe allows."""
    monkeypatch.setattr(upstream, "FIRST_SECONDS", 0.0)
    fall_back_to(monkeypatch, "second/big", "there/big")
    plays = [traces.error(429), traces.chat("big")]
    scripts: Any = {
        "first": (lambda seen: traces.error(402), "openai", {}),
        "second": (lambda seen: traces.error(402), "openai", {}),
        "there": (lambda seen: plays.pop(0), "openai", {"retries": 1}),
    }
    async with rigged_with(tmp_path, scripts) as rig:
        assert (await rig.chat("first/big")).status_code == 200
        assert len(rig.fakes[2].seen) == 2


def fall_back_to(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(serving, "_fallbacks", lambda _: names)


async def test_retries_do_not_worsen_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests fail, so the breaker opens before the retries."""
    monkeypatch.setattr(upstream, "FIRST_SECONDS", 0.001)
    async with rigged(tmp_path, lambda seen: traces.error(500), retries=5) as rig:
        codes = [(await rig.chat()).json()["error"]["code"] for _ in range(20)]
        assert codes[-1] == "provider_open"
        assert len(rig.fake.seen) == 5
