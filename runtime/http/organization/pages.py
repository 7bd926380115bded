"""Lists, page by page, as OpenAI's SDK turns them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import Response

from registry.base.wording import quoted
from registry.errors import BadRequest
from runtime.http.admin.answers import json_answer

After = Annotated[str | None, Query(description="The last id of the page before")]
Count = Annotated[int, Query(ge=1, le=100, description="Of a page")]
Order = Annotated[Literal["asc", "desc"], Query(description="By when they were made")]
Row = Mapping[str, Any]


def page(rows: Sequence[Row], after: str | None, limit: int, gone: Collection[str] = ()) -> Response:
    """Those behind `after`, without those that are gone: these stand among the others, since `after` may be one.

    Raises BadRequest where it is none of them.
    """
    ids = [row["id"] for row in rows]
    if after is not None and after not in ids:
        raise BadRequest(
            f"There is no {quoted(after)} in this list (any more): begin with its first page.", param="after"
        )
    first = ids.index(after) + 1 if after is not None else 0
    there = [row for row in rows[first:] if row["id"] not in gone]
    data = there[:limit]
    return json_answer(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": limit < len(there),
        }
    )
