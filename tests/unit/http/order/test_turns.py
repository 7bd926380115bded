"""How the backend of this machine's models waits for a turn: for how long, for what, and at which replica."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from models.messages import AdapterRef
from models.tasks.chat import ChatPayload
from registry.errors import DeadlineExceeded, RoundhouseError, Unavailable, Unreachable
from routing.replicas import ReplicaState, choose, keys_of
from runtime.gateway.context import Preference, RequestContext
from runtime.gateway.local.backend import LocalBackend
from runtime.scheduling.fair import QueueRequest
from tenants.caller import Caller

MAX_WAIT = 60.0
ANY: Any = None


class Model:
    """A model, and the residency that knows it. `waits` has the longest waits of its requests."""

    def __init__(self, *, is_ready: bool = True, expected: float = 0.0, error: RoundhouseError | None = None) -> None:
        self.model, self.is_ready, self.queue = "chat", is_ready, self
        self.recipe = SimpleNamespace(queue=SimpleNamespace(max_wait=MAX_WAIT))
        self.waits, self.loads = list[float | None](), 0
        self._expected, self._error = expected, error

    async def acquire(self, adapter: object, wait: float | None, probe: object, *, claim: QueueRequest) -> str:
        self.waits.append(wait)
        if self._error is not None:
            raise self._error
        return "a turn"

    def expected_wait(self, entry: object) -> float:
        return self._expected

    def request_load(self, entry: object) -> None:
        self.loads += 1

    async def turn(self, seconds: float | None = None, wait: float | None = None) -> object:
        """Wait for a turn, with `seconds` left and the client's longest wait."""
        by = None if seconds is None else time.monotonic() + seconds
        context = RequestContext("one", deadline=by, preference=Preference(wait=wait))
        backend = LocalBackend(ANY, cast(Any, self), ANY, ANY)
        request, target = SimpleNamespace(context=context), SimpleNamespace(version=None)
        return await backend._turn(cast(Any, request), cast(Any, target), cast(Any, self), None, QueueRequest())


@pytest.mark.parametrize(
    ("seconds", "wait", "expected"),
    [(None, None, None), (None, 7.0, 7.0), (1e3, None, MAX_WAIT), (1e3, 7.0, 7.0), (1e3, 1e6, 1e3), (30.0, None, 30.0)],
)
async def test_a_request_waits_as_long_as_client_deadline_and_recipe_allow(
    seconds: float | None, wait: float | None, expected: float | None
) -> None:
    model = Model()
    assert await model.turn(seconds, wait) == "a turn"
    assert model.waits == [expected if expected is None else pytest.approx(expected, abs=1.0)]
    assert model.loads == 0


async def test_a_request_that_is_too_late_on_arrival_never_waits() -> None:
    model = Model()
    with pytest.raises(DeadlineExceeded, match="deadline passed before 'chat' had answered"):
        await model.turn(-1.0)
    assert model.waits == []


async def test_a_load_longer_than_the_time_left_is_requested_but_not_waited_for() -> None:
    model = Model(is_ready=False, expected=900.0)
    with pytest.raises(Unreachable, match=r"would wait about 900\.0 s now"):
        await model.turn(500.0)
    assert (model.waits, model.loads) == ([], 1)
    assert await model.turn() == "a turn", "there is no deadline"
    ready = Model(expected=900.0)
    assert await ready.turn(500.0) == "a turn"
    assert ready.loads == 0


@pytest.mark.parametrize(
    ("code", "is_ready", "expected", "retry_after"),
    [
        ("queue_timeout", False, 30.0, 30.0),
        ("queue_timeout", False, 1.0, 2.0),
        ("queue_timeout", True, 30.0, 2.0),
        ("model_failed", False, 30.0, 2.0),
    ],
)
async def test_a_client_that_waited_in_vain_returns_once_the_model_is_expected(
    code: str, is_ready: bool, expected: float, retry_after: float
) -> None:
    error = Unavailable("Not now.", code=code, retry_after=2.0)
    with pytest.raises(Unavailable, match="Not now") as refused:
        await Model(is_ready=is_ready, expected=expected, error=error).turn()
    assert refused.value.retry_after == retry_after


class Replica:
    def __init__(self, number: int, is_ready: bool = True) -> None:
        self.number, self.is_ready, self.queue = number, is_ready, self

    def state(self, digest: str | None) -> ReplicaState:
        return ReplicaState(self.number, 0.0, 0.0, 0.0 if digest is None else 0.5)

    def seconds_of(self, work: float) -> float:
        return work / 1000


def chosen(ready: tuple[int, ...], text: str, team: str = "", digest: str | None = None) -> tuple[int, str]:
    """Return the number of the replica of four that gets a request, and why."""
    replicas = [Replica(number, number in ready) for number in range(1, 5)]
    entry = SimpleNamespace(replicas=replicas, queue=replicas[0])
    context = RequestContext("one", caller=Caller(salt=team))
    request = SimpleNamespace(context=context, calls=(ChatPayload("/v1/chat/completions", {"prompt": text}),))
    adapter = None if digest is None else AdapterRef(digest=digest, path="/x", rank=8, bytes=1)
    backend = LocalBackend(ANY, ANY, ANY, ANY)
    replica, reason = backend._choose(cast(Any, request), cast(Any, entry), adapter, 100.0)
    return replica.number, reason


def test_the_only_ready_replica_is_chosen() -> None:
    assert {chosen((3,), str(number)) for number in range(9)} == {(3, "only")}


@pytest.mark.parametrize(("team", "digest"), [("", None), ("one", None), ("two", None), ("one", "sha256:1")])
def test_a_ready_replica_is_chosen_by_the_prompt_its_team_and_its_adapter(team: str, digest: str | None) -> None:
    ready = (2, 4)
    states = [Replica(number).state(digest) for number in ready]
    for text in map(str, range(9)):
        position, reason = choose(states, keys_of({"prompt": text}, team, digest), 0.1)
        assert chosen(ready, text, team, digest) == (ready[position], reason)
