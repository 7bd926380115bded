"""Find the row that answered among the rows of a request's attempts (`runtime.http.attempts`).

| its attempts                              | the row that answered                          |
|-------------------------------------------|------------------------------------------------|
| one after the other                       | the last                                       |
| two beside each other, in ledgers of      | not the one that was given up (code `hedged`)  |
| servers that still made such attempts     |                                                |
| two, of which the second failed by itself | the first: it alone has begun its answer       |
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

HEDGED = "hedged"
"""The code of an attempt that was given up for the one beside it; no new row has it."""


class AttemptRow(Protocol):
    @property
    def attempt(self) -> int: ...
    @property
    def status(self) -> int | None: ...
    @property
    def code(self) -> str | None: ...


Row = TypeVar("Row", bound=AttemptRow)


def last_request(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the last request, newest first: clients may send an id again."""
    attempts: list[Row] = []
    for row in rows:
        attempts.append(row)
        if row.attempt == 1:
            break
    return attempts


def answering_row(rows: Sequence[Row]) -> Row:
    """Return the row that answered, from one request's rows, newest first."""
    stayed = [row for row in rows if row.code != HEDGED] or rows
    return next((row for row in stayed if row.status is not None and row.status < 400), stayed[0])
