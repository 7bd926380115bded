"""Limits on the tokens of a team's unfinished batches."""

import logging

import pytest

from registry.errors import BadRequest
from tenants.limits.records import Kind, Limit, Mode
from tenants.limits.stored import QueueLimiter

TEAM = "search"


def limit(amount: int, mode: Mode = Mode.ENFORCE, model: str = "") -> Limit:
    return Limit(f"{mode}-{model}", "team", TEAM, Kind.BATCH_TOKENS, amount, mode, model)


def limiter(*limits: Limit) -> tuple[QueueLimiter, list[str]]:
    reported: list[str] = []
    made = QueueLimiter(lambda _, what: reported.append(what), lambda: 0.0)
    made.replace(limits)
    return made, reported


def test_queued_and_new_tokens_count_together() -> None:
    queue, reported = limiter(limit(100))
    assert queue.refusal(TEAM, {"a": 60}, {}) is None
    assert queue.refusal(TEAM, {"a": 60}, {"a": 20, "b": 20}) is None
    refusal = queue.refusal(TEAM, {"a": 60}, {"a": 21, "b": 20})
    assert refusal is not None
    assert "is 100, of which 41 are used; this batch has about 60: create it again once" in refusal
    whole = queue.refusal(TEAM, {"a": 100}, {"b": 1})
    assert whole is not None
    assert "create it again once" in whole
    alone = queue.refusal(TEAM, {"a": 101}, {})
    assert alone is not None
    assert alone.endswith("split the file into smaller batches.")
    assert queue.refusal("other", {"a": 1000}, {}) is None
    assert (queue.is_limited(TEAM), queue.is_limited("other")) == (True, False)
    assert reported == ["refused"] * 3


def test_a_limit_of_one_model_counts_only_its_tokens() -> None:
    """An adapter's tokens count as its model's, in any version."""
    queue, _ = limiter(limit(10, model="chat"))
    assert queue.refusal(TEAM, {"embed@1": 1000}, {}) is None
    assert queue.refusal(TEAM, {"chat@3": 5, "chat:upper@v1": 5}, {"embed@1": 9}) is None
    for there in ("chat@2", "chat:upper@v1"):
        assert queue.refusal(TEAM, {"chat@3": 5, "chat:upper@v1": 5}, {there: 1}) is not None
    assert queue.refusal(TEAM, {"embed@1": 1}, {"chat@2": 100}) is None, (
        "the new batch has no tokens of the model over the limit"
    )


def test_a_limit_of_one_model_leaves_out_a_model_whose_name_begins_with_its_name() -> None:
    """As 'gpt:7b' does with 'gpt': it is no adapter of it, and has adapters of its own."""
    short, _ = limiter(limit(10, model="gpt"))
    assert short.refusal(TEAM, {"gpt:7b@1": 11, "gpt:7b:upper@v1": 11, "gpt:7b@1 adapter_id=org/name": 11}, {}) is None
    assert short.refusal(TEAM, {"gpt@1": 5, "gpt:upper@v1": 5, "gpt@1 adapter_id=new@v1": 1}, {}) is not None
    long, _ = limiter(limit(10, model="gpt:7b"))
    assert long.refusal(TEAM, {"gpt@1": 11, "gpt:upper@v1": 11}, {}) is None
    assert long.refusal(TEAM, {"gpt:7b@1": 5, "gpt:7b:upper@v1": 5, "gpt:7b@1 adapter_id=org/name": 1}, {}) is not None


def test_a_limit_of_one_model_counts_an_adapter_that_is_not_registered_yet() -> None:
    for model, name in (("chat", "chat:later"), ("gpt:7b", "gpt:7b:later@prod"), ("away/m:free", "away/m:free")):
        queue, _ = limiter(limit(10, model=model))
        assert queue.refusal(TEAM, {name: 11}, {}) is not None


def test_modes_decide_whether_a_limit_refuses_or_warns(caplog: pytest.LogCaptureFixture) -> None:
    queue, reported = limiter(limit(10, Mode.WARN), limit(10, Mode.SHADOW))
    with caplog.at_level(logging.WARNING):
        assert [queue.refusal(TEAM, {"a": 11}, {}) for _ in range(2)] == [None, None]
    assert reported == ["warned", "shadow"] * 2
    assert [vars(record)["limit"] for record in caplog.records] == ["warn-"]


def test_a_key_cannot_have_such_a_limit() -> None:
    with pytest.raises(BadRequest, match="batches belong to teams"):
        Limit("x", "key", "Ab3dE6gH", Kind.BATCH_TOKENS, 1)
