"""Embeddings."""

from collections.abc import Sequence

from models.messages import EmbedRequest
from models.protocol import EmbedModel, ModelEngine
from models.tasks.kind import CallSummary, Demand, EmitEvent, TaskKind, run_whole, text_size
from registry.bounds import Bounds
from registry.errors import BadRequest
from registry.recipes.definition import Task


async def _run(engine: ModelEngine[EmbedModel], request: EmbedRequest, emit: EmitEvent) -> None:
    await run_whole(engine.model.embed(request), emit)


def _demand(call: EmbedRequest, context: int, _audio_seconds: float) -> Demand:
    return Demand(sum(min(context, text_size(text)) for text in call.inputs))


def _summary(call: EmbedRequest) -> CallSummary:
    texts = [text for text in call.inputs if isinstance(text, str)]
    return CallSummary(last=texts[0] if texts else "", characters=sum(map(len, texts)))


def _check(calls: Sequence[EmbedRequest], bounds: Bounds) -> None:
    inputs = sum(len(call.inputs) for call in calls)
    if inputs > bounds.inputs:
        raise BadRequest(
            f"This request has {inputs} inputs; at most {bounds.inputs} fit into one. Send several requests.",
            param="input",
            code="too_many_inputs",
        )


EMBED = TaskKind(
    task=Task.EMBED,
    call=EmbedRequest,
    message=EmbedRequest,
    run=_run,
    demand=_demand,
    summary=_summary,
    check=_check,
)
