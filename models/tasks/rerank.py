"""Reranking: score documents for a query."""

from collections.abc import Sequence

from models.messages import RerankRequest
from models.protocol import ModelEngine, RerankModel
from models.tasks.kind import CallSummary, Demand, EmitEvent, TaskKind, run_whole, text_size
from models.text.pairs import LEAST_ROOM, OVERLAP
from registry.bounds import Bounds
from registry.errors import BadRequest
from registry.recipes.definition import Task


async def _run(engine: ModelEngine[RerankModel], request: RerankRequest, emit: EmitEvent) -> None:
    await run_whole(engine.model.rerank(request), emit)


def _demand(call: RerankRequest, context: int, _audio_seconds: float) -> Demand:
    query = text_size(call.query, call.max_query_tokens)
    most = sum(_pair(call, query, text_size(text, call.max_document_tokens), context) for text in call.documents)
    return Demand(most, pairs=len(call.documents))


def _pair(call: RerankRequest, query: int, document: int, context: int) -> int:
    """Return the tokens of a pair. A document that does not fit beside its query is read in chunks."""
    if call.truncate or query + document <= context:
        return min(context, query + document)
    room = max(LEAST_ROOM, context - query - 2)
    shared = room // OVERLAP
    chunks = max(1, -(-(document - shared) // (room - shared)))
    return context * min(chunks, call.max_chunks or chunks)


def _summary(call: RerankRequest) -> CallSummary:
    return CallSummary(last=call.query, characters=len(call.query) + sum(map(len, call.documents)))


def _check(calls: Sequence[RerankRequest], bounds: Bounds) -> None:
    documents = sum(map(_pairs, calls))
    if documents > bounds.documents:
        raise BadRequest(
            f"This request has {documents} documents; at most {bounds.documents} fit into one. Send several requests.",
            param="documents",
            code="too_many_documents",
        )


def _pairs(call: RerankRequest) -> int:
    return len(call.documents)


RERANK = TaskKind(
    task=Task.RERANK,
    call=RerankRequest,
    message=RerankRequest,
    run=_run,
    demand=_demand,
    summary=_summary,
    check=_check,
    pairs=_pairs,
)
