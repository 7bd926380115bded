"""vLLM's /score: pairs of texts, grouped by query so that each query is one call of the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from registry.errors import BadRequest
from runtime.http.rerank.bodies import ScoreBody, TextObject
from runtime.http.rerank.texts import plain, query_text

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
