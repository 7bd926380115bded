"""Lists, page by page, as OpenAI's SDK turns them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import Response

from runtime.http.admin.answers import json_answer

After = Annotated[str | None, Query(description="The last id of the page before")]
Count = Annotated[int, Query(ge=1, le=100, description="Of a page")]
Order = Annotated[Literal["asc", "desc"], Query(description="By when they were made")]
Shown = Mapping[str, Any]


def page(rows: Sequence[Shown], after: str | None, limit: int) -> Response:
    """Those behind `after`; all of them where it is not there (any more)."""
    ids = [row["id"] for row in rows]
    first = ids.index(after) + 1 if after in ids else 0
    data = rows[first : first + limit]
    return json_answer(
        {
            "object": "list",
            "data": list(data),
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": first + limit < len(rows),
        }
    )
