"""vLLM's /score: pairs of texts, grouped by query so that each query is one call of the engine."""

import asyncio
from collections.abc import Awaitable, Callable

from registry.errors import BadRequest
from runtime.http.rerank.answers import Ranking
from runtime.http.rerank.bodies import MAX_DOCUMENTS, ScoreBody, TextObject
from runtime.http.rerank.texts import plain, query_text

AT_ONCE = 4
"""Queries of one request that are in the engine at a time: a long list must not fill the model's line."""

SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


def pairs(body: ScoreBody) -> list[tuple[str, str]]:
    """(query, document) in the order of the answer. Raises BadRequest unless the sides are 1:1, 1:N or N:N."""
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
    if len(second) > MAX_DOCUMENTS:
        raise BadRequest(
            f"'{two}' has {len(second)} texts; at most {MAX_DOCUMENTS} fit into one request.",
            param=two,
            code="too_many_documents",
        )
    for index, query in enumerate(first):
        query_text(query, f"{one}[{index}]")
    return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))


def _texts(side: str | TextObject | list[str | TextObject], name: str) -> list[str]:
    if not isinstance(side, list):
        return [plain(side)]
    if not side:
        raise BadRequest(f"'{name}' is an empty list. Send at least one text.", param=name)
    return [plain(value) for value in side]


async def by_query(
    wanted: list[tuple[str, str]], rank: Callable[[str, list[str]], Awaitable[Ranking]]
) -> tuple[list[float], int]:
    """Logits in the order of the pairs, and the tokens of all. The first error ends the other calls."""
    groups: dict[str, list[int]] = {}
    for index, (query, _) in enumerate(wanted):
        groups.setdefault(query, []).append(index)
    logits, tokens = [0.0] * len(wanted), 0
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(query: str, indices: list[int]) -> None:
        nonlocal tokens
        async with turn:
            ranking = await rank(query, [wanted[i][1] for i in indices])
        for index, logit in zip(indices, ranking.result.logits, strict=True):
            logits[index] = logit
        tokens += ranking.tokens

    try:
        async with asyncio.TaskGroup() as tasks:
            for query, indices in groups.items():
                tasks.create_task(one(query, indices))
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return logits, tokens
