"""A recording from its samples to its segments, with scripted steps instead of a network."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models.batching.plan import Item
from models.messages import Segment, TranscribeRequest, TranscriptInfo, Usage
from models.speech.audio import Samples
from models.speech.decoder import RATE
from models.speech.model import WindowRequest, WindowResult
from models.speech.segments import TimedSegment
from models.speech.transcription import TranscriptionRun

SECONDS = 10
"""The length of a window."""


class Recording:
    """Silence in the form of a decoder's result. stated: its length according to its file."""

    def __init__(self, seconds: float, stated: float | None) -> None:
        self.length, self.samples, self._seconds = stated, 0, seconds

    def __iter__(self) -> Iterator[Samples]:
        left = int(self._seconds * RATE)
        while left:
            block = np.zeros(min(left, 8 * RATE), dtype=np.float32)
            self.samples += len(block)
            left -= len(block)
            yield block


class Steps:
    """Answers each window with the result that `script` has for its temperature."""

    def __init__(self, script: dict[float, WindowResult]) -> None:
        self.script, self.windows = script, list[WindowRequest]()

    async def submit(self, items: Sequence[Item[WindowRequest]]) -> Any:
        self.windows += [item.payload for item in items]
        return SimpleNamespace(results=[deepcopy(self.script[item.payload.temperature]) for item in items])


def window_result(text: str, likelihood: float = -0.1, ratio: float = 1.0, temperature: float = 0.0) -> WindowResult:
    segment = TimedSegment(0.0, 1.0, [1])
    return WindowResult([segment], "en", 1.0, temperature, likelihood, 0.0, ratio, [text])


async def events(
    steps: Steps, seconds: float, stated: float | None = None, **more: Any
) -> list[TranscriptInfo | Segment | Usage]:
    model: Any = SimpleNamespace(
        window=SimpleNamespace(seconds=SECONDS, padded=SECONDS), multilingual=False,
        previous=lambda *_: (), features=lambda audio: audio,
    )  # fmt: skip
    recording: Any = Recording(seconds, stated)
    run = TranscriptionRun(model, steps, TranscribeRequest(path="x", **more), recording, None)  # type: ignore[arg-type]
    return [event async for event in run.events()]


REPEATS = window_result("again again", ratio=3.0)
UNSURE = window_result("perhaps", -1.5, temperature=0.2)
LESS_SURE = window_result("what", -2.0, temperature=0.4)


@pytest.mark.parametrize(
    ("script", "tried", "text"),
    [
        ({0.0: window_result("well")}, [0.0], "well"),
        ({0.0: REPEATS, 0.2: window_result("well", temperature=0.2)}, [0.0, 0.2], "well"),
        ({0.0: window_result("no", -1.1), 0.2: REPEATS, 0.4: window_result("well")}, [0.0, 0.2, 0.4], "well"),
        ({0.0: REPEATS, 0.2: UNSURE, 0.4: LESS_SURE}, [0.0, 0.2, 0.4], "perhaps"),
        ({0.0: REPEATS, 0.2: REPEATS, 0.4: REPEATS}, [0.0, 0.2, 0.4], "again again"),
    ],
    ids=["well heard", "second", "third", "none is good", "all repeat themselves"],
)
async def test_a_poor_window_is_repeated_and_the_likeliest_text_is_used(
    script: dict[float, WindowResult], tried: list[float], text: str
) -> None:
    steps = Steps(script)
    found = await events(steps, 5.0, temperature=[0.0, 0.2, 0.4])
    assert [window.temperature for window in steps.windows] == tried
    assert [one.text for one in found if isinstance(one, Segment)] == [text]


async def test_usage_so_far_is_reported_after_each_window() -> None:
    found = await events(Steps({0.0: window_result("x")}), 25.0)
    assert [one.audio_seconds for one in found if isinstance(one, Usage)] == [10.0, 20.0, 25.0, 25.0]


async def test_a_long_recording_has_its_files_length_until_it_is_measured() -> None:
    found = await events(Steps({0.0: window_result("x")}), 130.0, stated=200.0)
    infos = [(at, one) for at, one in enumerate(found) if isinstance(one, TranscriptInfo)]
    assert [(one.duration, one.duration_after_vad) for _, one in infos] == [(200.0, 200.0), (130.0, 130.0)]
    assert [at for at, _ in infos] == [0, len(found) - 2]
    assert [one.start for one in found if isinstance(one, Segment)] == [10.0 * number for number in range(13)]


@pytest.mark.parametrize(("seconds", "windows"), [(10.0, 1), (10.01, 1), (10.1, 2), (0.01, 0)])
async def test_a_rest_too_short_for_speech_is_left_out(seconds: float, windows: int) -> None:
    steps = Steps({0.0: window_result("x")})
    found = await events(steps, seconds)
    assert len(steps.windows) == windows
    assert isinstance(found[-1], Usage)
    assert found[-1].audio_seconds == seconds


@pytest.mark.parametrize(("begun", "starts"), [(4.0, [0.0, 4.0, 8.0, 12.0]), (None, [0.0, 10.0])])
async def test_speech_that_begins_at_the_end_of_a_window_starts_the_next(
    begun: float | None, starts: list[float]
) -> None:
    segments = [
        TimedSegment(0.0, 1.0, [1]),
        *([] if begun is None else [TimedSegment(9.0, 10.0, [], closed=False, before=begun)]),
    ]
    texts = ["x", ""][: len(segments)]
    steps = Steps({0.0: WindowResult(segments, "en", 1.0, 0.0, -0.1, 0.0, 1.0, texts)})
    found = [one for one in await events(steps, 12.6) if isinstance(one, Segment)]
    assert [segment.start for segment in found] == starts


async def test_a_silent_window_is_left_out_whole_whatever_the_network_wrote() -> None:
    segments = [TimedSegment(0.0, 1.0, [1]), TimedSegment(1.0, 10.0, [2], closed=False, before=1.0)]
    steps = Steps({0.0: WindowResult(segments, "en", 1.0, 0.0, -1.5, 0.9, 1.0, ["x", "y"])})
    found = await events(steps, 20.0)
    assert len(steps.windows) == 2
    assert not [one for one in found if isinstance(one, Segment)]


async def test_seek_is_the_windows_first_frame() -> None:
    segments = [TimedSegment(0.0, 0.5, [1]), TimedSegment(0.58, 10.0, [2], closed=False, before=0.58)]
    steps = Steps({0.0: WindowResult(segments, "en", 1.0, 0.0, -0.1, 0.0, 1.0, ["x", "y"])})
    found = [one for one in await events(steps, 10.6) if isinstance(one, Segment)]
    assert [segment.seek for segment in found][:2] == [0, 58], "0.58 * 100 is slightly less than 58"
