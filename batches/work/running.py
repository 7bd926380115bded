"""One attempt at a line. It receives the answer, and is written with the end of its ledger row."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import sqlalchemy as sa

from batches.lines import change_line
from batches.records import ADAPTER, BatchRecord, Line, LineChange, LineEnd, LineUsage
from batches.storage.queries import is_open
from batches.work.ends import decide
from models.messages import Usage
from models.tasks.kind import work_of
from registry.base.json import NOT_JSON
from tenants.caller import Caller
from tenants.ledger.rows import Settlement


class _ErrorObject(msgspec.Struct):
    code: Any = None
    type: Any = None


class _ErrorBody(msgspec.Struct):
    error: Any = None


class _Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class _AnswerUsage(msgspec.Struct):
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _AnswerBody(msgspec.Struct):
    usage: _AnswerUsage | None = None


_error_body = msgspec.json.Decoder(_ErrorBody)
_answer_body = msgspec.json.Decoder(_AnswerBody)


class LineAttempt:
    """Takes the answer to a line, and is the rider of its ledger row (`tenants.ledger.rows.Rider`).

    body: the line's request. is_raised: it is of class interactive, because its batch has little time left.

    | what happened                            | `has_rider` | the line's end is written by      |
    |------------------------------------------|-------------|-----------------------------------|
    | it has a ledger row                      | True        | the row's settlement              |
    | it was refused or stopped before that    | False       | the worker, with `change`         |
    | its row never began, or had been closed  | True        | the worker, which may be too late |
    """

    def __init__(
        self, batch: BatchRecord, line: Line, epoch: int, caller: Caller, request: str, clock: Callable[[], float]
    ) -> None:
        self.batch, self.line, self.epoch, self.caller, self.request = batch, line, epoch, caller, request
        self.body = b""
        self.has_rider = self.was_written = self.is_raised = False
        self.expected_work, self.started = 0.0, time.monotonic()
        self.is_stopped = False
        """Whether the worker has stopped it."""
        self.used: Usage | None = None
        """The attempt's counted usage. None if it has no ledger row."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the ledger is finished with its row."""
        self._loop, self._clock = asyncio.get_running_loop(), clock
        self._end = LineEnd(None, request=request)
        self._uid: str | None = None

    @property
    def model(self) -> str:
        """The model name of the line, as it was resolved when the batch was created."""
        return self.batch.names.get(self.line.model, self.line.model)

    @property
    def own_name(self) -> str | None:
        """The name in the line, which its answer repeats, if the request names the pinned version instead."""
        return None if self.model == self.line.model else self.line.model.partition(ADAPTER)[0]

    @property
    def end_record(self) -> LineEnd:
        """The end of the attempt, as far as it is known."""
        return self._end

    # --- called by the request ----------------------------------------------------------------------------------------
    def answer(self, status: int, body: bytes, retry_after: float | None = None) -> None:
        """Take the complete answer or error response, before the request's end is recorded.

        Until `rider` is called, it counts as an answer that did not reach an engine.
        """
        code = "" if status < 400 else _code(body) or f"status_{status}"
        self._end = LineEnd(status, code, body, self.request, retry_after=retry_after, reached_engine=False)

    def retry_soon(self) -> None:
        """Let a refused line run again after the shortest pause."""
        self._end = replace(self._end, retry_after=None)

    def rider(self, settled: Settlement, *, reached_engine: bool) -> "LineAttempt":
        """Return the rows to write with this end. reached_engine: the request had a turn and kept it."""
        entry, end = settled.entry, self._end
        self.has_rider, self._uid = True, entry.uid
        self.used = Usage(
            prompt_tokens=settled.prompt_tokens,
            cached_tokens=settled.cached_tokens,
            completion_tokens=settled.completion_tokens,
            audio_seconds=settled.audio_ms / 1e3,
        )
        reasoning = min(_reasoning_tokens(end.body), settled.completion_tokens)
        usage = LineUsage(settled.prompt_tokens, settled.cached_tokens, settled.completion_tokens, reasoning)
        served = f"{entry.model}@{settled.revision}"
        self._end = replace(end, served=served, adapter=entry.adapter, usage=usage, reached_engine=reached_engine)
        return self

    def when_ended(self, then: Callable[[bool], None]) -> None:
        """Call `then` once the ledger is finished with the row of `rider`.

        then: called with whether the attempt counts. It does not if another server has taken the line over.
        """
        self.ended.add_done_callback(lambda _: then(self.was_written))

    @property
    def work(self) -> float:
        """The work of this attempt (`models.tasks.kind`)."""
        return 0.0 if self.used is None else work_of(self.used)

    def change(self) -> LineChange:
        """Return the line's next state."""
        return decide(self.line, self._end, self._clock())

    # --- in the ledger's thread ---------------------------------------------------------------------------------------
    def may_write(self, connection: sa.Connection) -> bool:
        """See `Rider`."""
        return is_open(connection, self.epoch)

    def write(self, connection: sa.Connection) -> None:
        """See `Rider`."""
        now = self._clock()
        change = decide(self.line, self._end, now)
        self.was_written = change_line(connection, self.epoch, self.line, change, now, self._uid)

    def end(self) -> None:
        """See `Rider`."""
        self._loop.call_soon_threadsafe(self._set_ended)

    def _set_ended(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _code(body: bytes) -> str:
    """Return the error's code, or its type if the dialect has no codes."""
    try:
        error = _error_body.decode(body).error
        if isinstance(error, dict):
            error_object = msgspec.convert(error, _ErrorObject)
            words = (word for word in (error_object.code, error_object.type) if isinstance(word, str))
            return next((word for word in words if word and "\0" not in word), "")  # PostgreSQL refuses NUL
    except NOT_JSON:
        pass
    return ""


def _reasoning_tokens(body: bytes) -> int:
    """Return the reasoning tokens in an answer of Chat Completions or Responses, 0 if it has no count."""
    if b'"reasoning_tokens"' not in body:
        return 0
    try:
        usage = _answer_body.decode(body).usage
    except NOT_JSON:
        return 0
    details = usage and (usage.completion_tokens_details or usage.output_tokens_details)
    return max(0, (details and details.reasoning_tokens) or 0)
