"""The scripted speech engine's transcript, and short functions that call it."""

from pathlib import Path
from typing import Any

import httpx

from models.messages import Event, ResponseEnd, Segment, TranscribeRequest, TranscriptInfo, Usage, Word
from tests.unit.http.fakes import FakeGateway

PATH = "/v1/audio/transcriptions"
INFO = TranscriptInfo(language="en", language_probability=0.9, duration=61.5, duration_after_vad=60.0)
WAV = b"RIFF" + bytes(range(256)) * 16


def segment(number: int, start: float, end: float, text: str) -> Segment:
    words = [Word(start=start, end=end, word=text, probability=0.5)]
    return Segment(
        id=number, seek=0, start=start, end=end, text=text, tokens=[1, 2], temperature=0.0, avg_logprob=-0.25,
        compression_ratio=1.5, no_speech_prob=0.125, words=words,
    )  # fmt: skip


SEGMENTS = [segment(1, 0.0, 1.5, " Turn on <the> lamp."), segment(2, 3599.9996, 3661.25, " Now --> & then.")]
END = ResponseEnd(usage=Usage(audio_seconds=61.5, batch=2))
SCRIPT: list[Event] = [INFO, *SEGMENTS, END]
TEXT = "Turn on <the> lamp. Now --> & then."
DURATION = {"type": "duration", "seconds": 62}


def engine_request(gateway: FakeGateway) -> TranscribeRequest:
    request = gateway.links["speech"].requests[-1]
    assert isinstance(request, TranscribeRequest)
    return request


def left_over(gateway: FakeGateway) -> list[Path]:
    return list(gateway.settings.run_dir.rglob("*.audio"))


async def post(client: httpx.AsyncClient, /, path: str = PATH, **fields: Any) -> httpx.Response:
    return await client.post(path, data={"model": "speech", **fields}, files={"file": ("a.wav", WAV, "audio/wav")})
