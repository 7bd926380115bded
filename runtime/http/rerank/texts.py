"""What clients send as queries and documents, as the strings that the model scores."""

from collections.abc import Sequence
from typing import Any

from registry.errors import BadRequest
from runtime.http.rerank.bodies import TextObject


def document_text(value: str | dict[str, Any], where: str, fields: Sequence[str] | None = None) -> str:
    """A string as it is; of an object its `text`, or the fields that `rank_fields` names.

    One field gives its value; several give a line `name: value` each, in the order of `fields`. Raises BadRequest for
    an object without them, and for images and other things that are not text.
    """
    if isinstance(value, str):
        return value
    names = list(fields or ("text",))
    missing = [name for name in names if value.get(name) is None]
    if missing:
        raise BadRequest(
            f"'{where}' has no field '{missing[0]}'. Send a string, an object with 'text', or name the fields to "
            "score in 'rank_fields'.",
            param=where,
        )
    for name in names:
        if not isinstance(value[name], str | int | float):
            raise BadRequest(f"'{where}.{name}' must be text.", param=f"{where}.{name}")
    if len(names) == 1:
        return str(value[names[0]])
    return "\n".join(f"{name}: {value[name]}" for name in names)


def plain(value: str | TextObject) -> str:
    return value if isinstance(value, str) else value.text


def query_text(value: str | TextObject, where: str = "query") -> str:
    """Raises BadRequest for an empty query: nothing could be ranked by it."""
    text = plain(value)
    if not text:
        raise BadRequest(f"'{where}' is empty.", param=where)
    return text


def document_texts(
    values: Sequence[str | dict[str, Any]], where: str = "documents", fields: Sequence[str] | None = None
) -> list[str]:
    """Raises BadRequest for none."""
    if not values:
        raise BadRequest(f"'{where}' is an empty list. Send at least one.", param=where)
    return [document_text(value, f"{where}[{i}]", fields) for i, value in enumerate(values)]


def tightest(*limits: int | None) -> int:
    """The smallest of several limits that mean the same; 0 and None stand for no limit, and so does the answer 0."""
    return min((limit for limit in limits if limit), default=0)


def context_only(value: int | None) -> bool:
    """Whether vLLM's truncate_prompt_tokens asks for a cut at the context length; BadRequest for other lengths."""
    if value not in (None, -1):
        raise BadRequest(
            "'truncate_prompt_tokens' may only be -1, the model's context length.",
            param="truncate_prompt_tokens",
            code="unsupported_value",
        )
    return value == -1
