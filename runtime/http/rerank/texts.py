"""Queries, documents and pairs from clients, as texts for the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from registry.errors import BadRequest
from runtime.http.rerank.bodies import ScoreBody, TextObject


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


# --- pairs of /score, grouped by query: each query is one call of the engine ------------------------------------------
SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


@dataclass(frozen=True, slots=True)
class ScorePairs:
    """(query, document) in the order of the answer."""

    all: Sequence[tuple[str, str]]
    sides: tuple[str, str]
    """The fields that brought the queries and the documents."""

    def by_query(self) -> list[tuple[str, list[int]]]:
        """Each query with the places of its pairs."""
        groups: dict[str, list[int]] = {}
        for position, (query, _) in enumerate(self.all):
            groups.setdefault(query, []).append(position)
        return list(groups.items())

    def in_order(self, scores: Sequence[Sequence[float]]) -> list[float]:
        """Scores of the pairs as `by_query` gives them, in the order of the answer."""
        found = [0.0] * len(self.all)
        for (_, positions), row in zip(self.by_query(), scores, strict=True):
            for position, score in zip(positions, row, strict=True):
                found[position] = score
        return found


def pairs(body: ScoreBody) -> ScorePairs:
    """The pairs in the order of the answer. Raises BadRequest unless the sides are 1:1, 1:N or N:N."""
    for one, two in SIDES:
        left, right = getattr(body, one), getattr(body, two)
        if left is not None and right is not None:
            break
    else:
        raise BadRequest("Send 'text_1' and 'text_2', or 'queries' and 'documents'.", param="text_1")
    first, second = _texts(left, one), _texts(right, two)
    if len(first) != len(second) and len(first) != 1:
        raise BadRequest(
            f"'{one}' has {len(first)} texts and '{two}' has {len(second)}. Send one and any number, or as many of "
            "both.",
            param=two,
        )
    for index, query in enumerate(first):
        query_text(query, f"{one}[{index}]")
    return ScorePairs(list(zip(first * len(second) if len(first) == 1 else first, second, strict=True)), (one, two))


def _texts(side: str | TextObject | list[str | TextObject], name: str) -> list[str]:
    if not isinstance(side, list):
        return [plain(side)]
    if not side:
        raise BadRequest(f"'{name}' is an empty list. Send at least one text.", param=name)
    return [plain(value) for value in side]
