"""Shared parts of the administration routes: scope, answers, paged lists."""

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import Response

from registry.base.wording import quoted
from registry.errors import BadRequest
from runtime.http.admin.bodies import json_answer
from runtime.http.route import RouteGroup
from runtime.http.schema import ANY_OBJECT, BOOLEAN, CONFLICT, STRING, array, component, nullable, record
from tenants.caller import Scope

admin_route = partial(RouteGroup("Organization"), scope=Scope.ADMIN, errors=(*CONFLICT, 503))
OBJECT = component("OrganizationObject", record({"object": STRING}))
"""An object of OpenAI's, described by its SDK's types."""
LIST = component(
    "OrganizationList",
    record(
        {
            "object": {"const": "list"},
            "data": array(ANY_OBJECT),
            "first_id": nullable(STRING),
            "last_id": nullable(STRING),
            "has_more": BOOLEAN,
        }
    ),
)

After = Annotated[str | None, Query(description="The last id of the previous page")]
Count = Annotated[int, Query(ge=1, le=100, description="Entries per page")]
Order = Annotated[Literal["asc", "desc"], Query(description="By time of creation")]
Row = Mapping[str, Any]


def page(rows: Sequence[Row], after: str | None, limit: int, gone: Set[str] = frozenset()) -> Response:
    """One page of `rows`: those behind the id `after`, without those whose id is in `gone`.

    `rows` includes what is gone, since `after` may be one of them. Raises BadRequest where it is none of them.
    Call it in a thread: a server has tens of thousands of keys after a year, because none is ever deleted.
    """
    ids = [row["id"] for row in rows]
    if after is not None and after not in ids:
        raise BadRequest(
            f"There is no {quoted(after)} in this list (any more): begin with its first page.", param="after"
        )
    first = ids.index(after) + 1 if after is not None else 0
    there = [row for row in rows[first:] if row["id"] not in gone]
    data = there[:limit]
    return list_answer(data, limit < len(there))


def list_answer(rows: Sequence[Row], more: bool) -> Response:
    """A page of a list in OpenAI's shape. more: others follow these."""
    ids = [row["id"] for row in rows]
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return json_answer({"object": "list", "data": rows, "first_id": first, "last_id": last, "has_more": more})
