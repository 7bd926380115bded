"""Transcription and translation of recordings."""

from contextlib import aclosing
from pathlib import Path

from models.messages import ResponseEnd, TranscribeRequest, Usage
from models.protocol import ModelEngine, TranscribeModel
from models.speech.length import seconds_of
from models.tasks.kind import CallSummary, Demand, EmitEvent, TaskKind, WorkRates
from registry.recipes.definition import Task


async def _run(engine: ModelEngine[TranscribeModel], request: TranscribeRequest, emit: EmitEvent) -> None:
    usage = Usage()
    try:
        async with aclosing(engine.model.transcribe(request)) as parts:
            async for part in parts:
                if isinstance(part, Usage):
                    usage = part
                else:
                    emit(part)
    finally:
        emit(ResponseEnd(usage=usage))  # transcribed audio counts however the call ends


def _demand(call: TranscribeRequest, _context: int, audio_seconds: float) -> Demand:
    return Demand(audio_ms=round(1e3 * min(audio_seconds, seconds_of(Path(call.path)))))


TRANSCRIBE = TaskKind(
    task=Task.TRANSCRIBE,
    call=TranscribeRequest,
    message=TranscribeRequest,
    run=_run,
    demand=_demand,
    summary=lambda call: CallSummary(language=call.language),
    work=WorkRates(byte=0.002),
)
