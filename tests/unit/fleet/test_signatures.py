"""Signed requests of a fleet with a key: which are accepted, and which are not."""

import logging
from pathlib import Path

import pytest

from fleet import signatures
from fleet.signatures import (
    WINDOW_SECONDS,
    FleetKey,
    SignedRequest,
    fault_of,
    key_of_pepper,
    read_key,
    read_signature,
    sign,
)
from registry.errors import BadRequest, Misdirected, NotFound
from tests.fakes.clocks import Clock

KEY = b"the key of a fleet, 32 or longer"
REQUEST = SignedRequest("node-1", "POST", "/v1/chat/completions?a=b", "context")
NOW = 1_790_000_000.0
NONCE = "0123456789abcdef"


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


def faults(value: str, request: SignedRequest = REQUEST, key: bytes = KEY, now: float = NOW) -> str | None:
    return fault_of(key, request, read_signature(value), now)


def test_a_signature_is_valid_for_half_a_minute() -> None:
    value = sign(KEY, REQUEST, NOW, NONCE)
    for seconds in (-WINDOW_SECONDS, 0.0, WINDOW_SECONDS):
        assert faults(value, now=NOW + seconds) is None
    assert faults(value, now=NOW + WINDOW_SECONDS + 1) == "the signature is 31 s old"
    assert faults(value, now=NOW - WINDOW_SECONDS - 1) == "the signature is from 31 s in the future"


@pytest.mark.parametrize(
    "change",
    [{"node": "node-2"}, {"method": "GET"}, {"path": "/v1/chat/completions"}, {"context": "another"}, {"context": ""}],
    ids=str,
)
def test_a_signature_is_invalid_for_another_request(change: dict[str, str]) -> None:
    assert "for another request" in (faults(sign(KEY, REQUEST, NOW, NONCE), REQUEST._replace(**change)) or "")


def test_a_signature_is_invalid_with_another_key_or_time() -> None:
    value = sign(KEY, REQUEST, NOW, NONCE)
    assert "from another key" in (faults(value, key=KEY[::-1]) or "")
    later = f"{int((NOW + 60) * 1e3)}{value[value.index('.') :]}"
    assert "from another key" in (faults(later, now=NOW + 60) or "")


@pytest.mark.parametrize(
    "value", ["", "x", "1.2.3", f"{NOW:.0f}.{NONCE}.", f"-1.{NONCE}.{'0' * 64}", f"{'9' * 16}.{NONCE}.{'0' * 64}"]
)
def test_a_malformed_signature_is_invalid(value: str) -> None:
    assert faults(value) == "the request is not signed with a key of the fleet"


def test_a_request_is_accepted_once_and_the_log_names_refusals(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = FleetKey("front-1", KEY, clock), FleetKey("node-1", KEY, clock)
    value = sender.sign(REQUEST)
    receiver.check(REQUEST, value)
    with caplog.at_level(logging.WARNING, "roundhouse.fleet"), pytest.raises(Misdirected, match="was used before"):
        receiver.check(REQUEST, value)
    assert [vars(one)["cause"] for one in caplog.records] == ["the signature was used before"]
    clock.now += WINDOW_SECONDS
    with pytest.raises(Misdirected, match="was used before"):
        receiver.check(REQUEST, value)
    receiver.check(REQUEST, sender.sign(REQUEST))


def test_accepted_requests_are_forgotten_once_they_are_too_old(clock: Clock) -> None:
    sender, receiver = FleetKey("front-1", KEY, clock), FleetKey("node-1", KEY, clock)
    clock.now += WINDOW_SECONDS  # the sender's clock may be ahead by so much
    early = sender.sign(REQUEST)
    clock.now -= WINDOW_SECONDS
    receiver.check(REQUEST, early)
    clock.now += 2 * WINDOW_SECONDS
    with pytest.raises(Misdirected, match="was used before"):
        receiver.check(REQUEST, early)
    clock.now += 1.0
    receiver.check(REQUEST, sender.sign(REQUEST))
    assert len(receiver._taken) == 1
    with pytest.raises(Misdirected, match="31 s old"):
        receiver.check(REQUEST, early)


def test_a_restarted_server_accepts_nothing_from_before(clock: Clock) -> None:
    sender = FleetKey("front-1", KEY, clock)
    value = sender.sign(REQUEST)
    clock.now += 5.0
    with pytest.raises(Misdirected, match="older than this server's start"):
        FleetKey("node-1", KEY, clock).check(REQUEST, value)


def test_requests_are_accepted_after_the_databases_clock_was_set_back(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = FleetKey("front-1", KEY, clock), FleetKey("node-1", KEY, clock)
    for _ in range(3):
        clock.now += 1.0
        receiver.check(REQUEST, early := sender.sign(REQUEST))
    clock.now -= 3600.0
    late = sender.sign(REQUEST)
    receiver.check(REQUEST, late)
    with pytest.raises(Misdirected, match="was used before"):
        receiver.check(REQUEST, late)
    with pytest.raises(Misdirected, match="is from 3600 s in the future"):
        receiver.check(REQUEST, early)
    assert caplog.messages[0] == "the database's clock was set back"
    assert len(receiver._taken) == 1
    clock.now += 3600.0
    with pytest.raises(Misdirected, match="was used before"):
        receiver.check(REQUEST, early)
    clock.now += 2 * WINDOW_SECONDS + 1.0
    receiver.check(REQUEST, sender.sign(REQUEST))
    assert (len(receiver._taken), receiver._taken_before) == (1, {})


def test_remembered_requests_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "MAX_TAKEN", 2)
    sender, receiver = FleetKey("front-1", KEY, clock), FleetKey("node-1", KEY, clock)
    for _ in range(2):
        receiver.check(REQUEST, sender.sign(REQUEST))
    with pytest.raises(Misdirected, match="2 requests within a minute"):
        receiver.check(REQUEST, sender.sign(REQUEST))
    clock.now += 2 * WINDOW_SECONDS + 1
    receiver.check(REQUEST, sender.sign(REQUEST))


def test_a_key_is_read_without_the_line_feed_and_must_be_long_enough(tmp_path: Path) -> None:
    file = tmp_path / "fleet.key"
    with pytest.raises(NotFound, match="cannot be read"):
        read_key(file)
    for text in ("short", "x" * 4097):
        file.write_text(text)
        with pytest.raises(BadRequest, match="openssl rand -hex 32"):
            read_key(file)
    file.write_bytes(KEY + b"\n")
    assert read_key(file) == KEY
    assert key_of_pepper(KEY) != key_of_pepper(KEY[::-1])
