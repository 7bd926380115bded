"""The lease of a model on this machine: what it tells of itself, hands to the engine, and how its calls end."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from models.messages import Chunk, HttpCall, Progress
from models.tasks.chat import ChatPayload
from models.tasks.kind import ANSWER_TOKEN
from registry.errors import DeadlineExceeded, RoundhouseError, Unavailable
from routing.replicas import Reason
from runtime.gateway.context import RequestContext, RequestHints
from runtime.gateway.local.lease import LocalLease
from runtime.scheduling.admission import REVOKED
from runtime.slots import frames
from runtime.slots.link import FrameCall
from tenants.caller import ServiceClass

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


class Turn:
    """A turn in the queue, and the slot that it gives access to."""

    def __init__(self) -> None:
        self.link, self.ticket = self, SimpleNamespace(aborted=asyncio.get_running_loop().create_future())
        self.work = list[float]()
        self.requests = list[HttpCall]()
        self.calls = list[FrameCall]()

    def progress(self, work: float) -> None:
        self.work.append(work)

    def call(self, make: Callable[[int], frames.ToSlot]) -> FrameCall:
        frame = make(len(self.calls))
        assert isinstance(frame, frames.Call)
        self.requests.append(frame.decoded(HttpCall))
        self.calls.append(FrameCall(self, frame.uid))
        return self.calls[-1]

    def cancel(self, uid: int) -> None:
        pass

    def forget(self, uid: int) -> None:
        pass


def lease_of(turn: Turn, *, reason: Reason = "prompt", count: int = 1, loaded: str = "", **about: Any) -> LocalLease:
    recipe: Any = SimpleNamespace(system=None, stop=(), generation=None, pools={})
    entry: Any = SimpleNamespace(
        model="chat", recipe=recipe, number=2, replicas=["replica"] * count, loaded_revision=loaded, revision="new"
    )
    request: Any = SimpleNamespace(context=RequestContext("one", **about), trace=None)
    target: Any = SimpleNamespace(requested="chat")
    return LocalLease(request, target, entry, None, cast(Any, turn), AsyncExitStack(), reason)


async def test_it_names_the_revision_in_the_engine_not_the_next_one() -> None:
    assert lease_of(Turn(), loaded="old").revision == "old"
    assert lease_of(Turn()).revision == "new"


async def test_only_one_of_several_replicas_is_named() -> None:
    alone, other = lease_of(Turn()), lease_of(Turn(), count=2)
    assert (alone.replica, alone.replica_reason) == (0, None)
    assert (other.replica, other.replica_reason) == (2, "prompt")


async def test_the_tokens_of_a_stream_are_charged_as_they_arrive() -> None:
    turn = Turn()
    lease = lease_of(turn)
    for data in (b"data: a\n\ndata: b\n\n", b"data: ", b"c\n\n"):
        lease.count(data)
    assert turn.work == [2 * ANSWER_TOKEN, 2 * ANSWER_TOKEN, 3 * ANSWER_TOKEN]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("echoes", [True, False])
async def test_a_class_is_echoed_if_the_client_gave_one(path: str, echoes: bool) -> None:
    turn = Turn()
    about = {"hints": RequestHints(echoes_class=echoes), "service_class": ServiceClass.BATCH}
    await lease_of(turn, **about).start(ChatPayload(path, {"n": 1}))
    [request] = turn.requests
    assert request.tier == ("flex" if echoes else "")
    repeated = {"service_tier": "flex"} if echoes and path == RESPONSES else {}
    assert msgspec.json.decode(request.body) == {"n": 1, "model": "chat", **repeated}


@pytest.mark.parametrize("code", ["drained", REVOKED])
async def test_a_turn_that_is_taken_away_ends_its_call(code: str) -> None:
    """A revoked batch line first leaves the engine, since it keeps its turn until then."""
    turn = Turn()
    events = aiter(lease_of(turn).run(ChatPayload(CHAT, {})))
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    error: RoundhouseError = Unavailable("Taken away.", code=code)
    turn.ticket.aborted.set_result(error)
    for _ in range(3):
        await asyncio.sleep(0)
    assert waiting.done() == (code != REVOKED)
    turn.calls[0].put(frames.CallDone(0))
    with pytest.raises(Unavailable, match="Taken away") as ended:
        await waiting
    assert ended.value.code == code


async def test_an_answer_must_begin_in_time_but_may_then_take_until_the_deadline() -> None:
    now = time.monotonic()
    late = aiter(lease_of(Turn(), first_by=now + 0.01).run(ChatPayload(CHAT, {})))
    with pytest.raises(DeadlineExceeded, match="'chat'"):
        await anext(late)
    turn = Turn()
    events = aiter(lease_of(turn, first_by=now + 100).run(ChatPayload(CHAT, {})))
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    turn.calls[0].put(frames.Report(0, Progress("weights", 0.5)))
    turn.calls[0].put(frames.Emit(0, Chunk(b"a")))
    assert await first == Chunk(b"a"), "progress is no answer"
    assert events._until is None  # type: ignore[attr-defined]
