"""The speech engine on the real library, with tiny random Whispers.

Words as in faster-whisper's own pipeline, times that fit the recording, bounded memory, clear refusals. The starter
model's tests check that words are right.
"""

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import pytest_asyncio

from models.batching.engine import BatchedEngine
from models.engines import create
from models.messages import Segment, TranscribeRequest, TranscriptInfo, Usage
from models.speech import engine as speech
from models.speech import engine as whisper
from models.speech.audio import Recording
from models.speech.decoder import RATE
from models.speech.engine import Transcriber
from models.speech.model import WindowRequest, WindowResult
from models.speech.segments import TimedSegment
from models.speech.transcription import TranscriptionRun
from registry.errors import BadRequest, EngineFailed, TooLarge
from tests.contract.speech.fixtures import build, noise, silence, tone, voice, write
from tests.contract.text.fixtures import Reports, recipe

real = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

Whisper = BatchedEngine[Transcriber]
FLAGS = {"beam_size": 1, "threads": 1}

Event = TranscriptInfo | Segment | Usage


def whisper_recipe(*, window: dict[str, int] | None = None, at_once: int = 8, waiting: int = 16, **more: Any) -> Any:
    parts = {
        "engine": {"name": "faster-whisper", "flags": {**FLAGS, **more}},
        "batching": {"max_requests": at_once, "max_tokens": 240},
        "queue": {"max_waiting": waiting},
    }
    return recipe("transcribe", dtype="auto", window=window or {}, **parts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speech")


@pytest.fixture(scope="module")
def sounds(folder: Path) -> dict[str, Path]:
    pause = np.concatenate([silence(3), voice(50), silence(10), voice(20), silence(5)])
    made = {"short.wav": voice(5), "long.flac": voice(40), "pause.mp3": pause, "silence.wav": silence(5),
            "noise.ogg": noise(5), "tone.m4a": tone(5)}  # fmt: skip
    return {name: write(folder / name, samples) for name, samples in made.items()}


@pytest.fixture(scope="module")
def english_model(folder: Path) -> Path:
    return build(folder / "english", multilingual=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def english(english_model: Path) -> AsyncIterator[Whisper]:
    engine = create("faster-whisper", "transcribe")
    assert isinstance(engine, BatchedEngine)
    reports = Reports()
    loaded = await engine.load(whisper_recipe(), english_model, "cpu", reports)
    assert 600_000 < loaded.weights_bytes < loaded.resident_bytes
    assert [progress.phase for progress in reports.seen] == ["importing", "weights", "warming", "ready"]
    yield engine
    await engine.close()
    with pytest.raises(EngineFailed, match="closed"):
        await everything(engine, Path("x"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def multilingual(folder: Path) -> AsyncIterator[Whisper]:
    engine = whisper.engine()
    await engine.load(whisper_recipe(), build(folder / "multilingual", multilingual=True), "cpu", Reports())
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def short_windows(folder: Path, multilingual: Whisper) -> AsyncIterator[Whisper]:
    """The multilingual model with windows of 5 s that are padded to 8 s."""
    engine = whisper.engine()
    await engine.load(whisper_recipe(window={"seconds": 5, "padded": 8}), folder / "multilingual", "cpu", Reports())
    yield engine
    await engine.close()


async def everything(engine: Whisper, path: Path, **more: Any) -> list[Event]:
    async with aclosing(engine.model.transcribe(TranscribeRequest(path=str(path), **more))) as events:
        return [event async for event in events]


def segments(events: Sequence[Event]) -> list[Segment]:
    return [event for event in events if isinstance(event, Segment)]


def check(events: Sequence[Event], seconds: float) -> None:
    """Check what must hold for every transcript."""
    infos = [event for event in events if isinstance(event, TranscriptInfo)]
    assert isinstance(events[0], TranscriptInfo)
    assert isinstance(events[-1], Usage)
    assert infos[-1].duration == pytest.approx(seconds, abs=0.2)
    assert events[-1].audio_seconds == infos[-1].duration
    found = segments(events)
    assert [segment.id for segment in found] == list(range(len(found)))
    for segment in found:
        assert 0 <= segment.start <= segment.end <= seconds + 0.2
        assert segment.text.strip()
        for word in segment.words or []:
            assert segment.start <= word.start <= word.end <= segment.end


class TestEngine:
    pytestmark = real

    async def test_a_short_recording(self, english: Whisper, sounds: dict[str, Path]) -> None:
        events = await everything(english, sounds["short.wav"])
        check(events, 5.0)
        assert segments(events)
        assert events[0] == TranscriptInfo(
            language="en", language_probability=1.0, duration=5.0, duration_after_vad=5.0
        )  # fmt: skip
        await english.ping()

    async def test_the_tokens_are_the_librarys_own(
        self, english: Whisper, english_model: Path, sounds: dict[str, Path]
    ) -> None:
        from faster_whisper import BatchedInferencePipeline, WhisperModel

        library = BatchedInferencePipeline(WhisperModel(str(english_model), device="cpu", cpu_threads=1))
        expected, _ = library.transcribe(
            str(sounds["short.wav"]), beam_size=1, without_timestamps=False, max_initial_timestamp=1.0
        )
        first_time = library.model.hf_tokenizer.token_to_id("<|notimestamps|>") + 1
        # The library drops what follows the last finished segment; we keep it.
        expected_ = [token for segment in expected for token in segment.tokens if token < first_time]
        found = [t for s in segments(await everything(english, sounds["short.wav"])) for t in s.tokens]
        assert expected_
        assert found[: len(expected_)] == expected_

    async def test_pauses_are_left_out_and_times_are_the_recordings(
        self, english: Whisper, sounds: dict[str, Path]
    ) -> None:
        events = await everything(english, sounds["pause.mp3"])
        check(events, 88.0)
        last = [event for event in events if isinstance(event, TranscriptInfo)][-1]
        assert 60 < last.duration_after_vad < 80
        starts = [segment.start for segment in segments(events)]
        assert starts == sorted(starts)
        assert all(start < 54.5 or start > 61 for start in starts)

    @pytest.mark.parametrize("name", ["silence.wav", "noise.ogg", "tone.m4a"])
    async def test_sounds_other_than_speech_have_no_text(
        self, english: Whisper, sounds: dict[str, Path], name: str
    ) -> None:
        events = await everything(english, sounds[name])
        check(events, 5.0)
        assert not segments(events)
        assert segments(
            await everything(english, sounds[name], vad=False)
        )  # without voice detection, a random network writes something

    async def test_a_client_that_asks_for_voice_detection_gets_the_recipes_threshold(
        self, english_model: Path, sounds: dict[str, Path]
    ) -> None:
        """At 0 everything is speech, at the default nothing of this recording."""
        engine = whisper.engine()
        await engine.load(whisper_recipe(vad=False, vad_threshold=0), english_model, "cpu", Reports())
        try:
            assert segments(await everything(engine, sounds["silence.wav"], vad=True))
        finally:
            await engine.close()

    async def test_words_have_times_within_their_segment(self, english: Whisper, sounds: dict[str, Path]) -> None:
        events = await everything(english, sounds["long.flac"], word_timestamps=True)
        check(events, 40.0)
        assert all(segment.words is not None for segment in segments(events))

    async def test_without_voice_detection_windows_are_the_librarys_own(
        self, multilingual: Whisper, folder: Path
    ) -> None:
        """Each begins at the end of the previous window's last finished segment."""
        from faster_whisper import WhisperModel

        path = write(folder / "longer.wav", voice(47))
        library = WhisperModel(str(folder / "multilingual"), device="cpu", cpu_threads=1)
        bounds = dict.fromkeys(("compression_ratio_threshold", "log_prob_threshold", "no_speech_threshold"))
        expected, _ = library.transcribe(
            str(path), beam_size=1, temperature=0.0, language="en", condition_on_previous_text=False, **bounds
        )
        found = segments(await everything(multilingual, path, language="en", vad=False))
        seeks = sorted({segment.seek for segment in found})
        assert seeks == sorted({segment.seek for segment in expected})
        assert len(seeks) > 1
        assert seeks[1] < 2900, "the second window begins before the end of the first"

    async def test_the_text_is_the_same_with_word_times(self, short_windows: Whisper, sounds: dict[str, Path]) -> None:
        """Without voice detection a window begins where the network says, not at the first word's time."""
        plain, timed = [
            [segment.tokens for segment in segments(await everything(short_windows, sounds["long.flac"], **requested))]
            for requested in ({"vad": False}, {"vad": False, "word_timestamps": True})
        ]
        assert plain == timed

    async def test_words_in_a_tiny_window_can_be_aligned(self, english: Whisper) -> None:
        """The windows of a step are aligned together, and the library fails for windows of a single frame."""
        model = english.model.model
        tokens = model._tokenizer.encode(" turn on the light")
        windows = [WindowRequest(model.features(noise(seconds)), seconds, words=True) for seconds in (5.0, 0.01)]
        received = [
            WindowResult([TimedSegment(0.0, window.seconds, tokens)], "en", 1.0, 0.0, 0.0, 0.0, 0.0)
            for window in windows
        ]
        encoded = model.whisper.encode(np.stack([window.features for window in windows]))
        model._align(model.whisper, encoded, "en", windows, received)
        for window, one in zip(windows, received, strict=True):
            words = one.segments[0].words
            assert "".join(word.word for word in words) == " turn on the light"
            assert words[-1].end <= window.seconds

    async def test_prompt_hotwords_and_temperatures(self, english: Whisper, sounds: dict[str, Path]) -> None:
        plain, prompted, again = await asyncio.gather(
            everything(english, sounds["short.wav"]),
            everything(english, sounds["short.wav"], prompt="steam rail " * 200, hotwords="boiler"),
            everything(english, sounds["short.wav"], temperature=[0.0, 0.5]),
        )
        for events in (plain, prompted, again):
            check(events, 5.0)
        assert [s.tokens for s in segments(plain)] != [s.tokens for s in segments(prompted)]
        assert {segment.temperature for segment in segments(again)} <= {0.0, 0.5}

    async def test_special_tokens_in_a_prompt_do_no_harm(self, english: Whisper, sounds: dict[str, Path]) -> None:
        """A second <|startoftranscript|> in one of several prompts of equal length made the library fail the step."""
        prompts = ["steam rail"] + ["steam<|startoftranscript|> rail"] * 3
        found = await asyncio.gather(
            *(everything(english, sounds["short.wav"], prompt=prompt, temperature=[0.0]) for prompt in prompts)
        )
        assert len({tuple(s.text for s in segments(events)) for events in found}) == 1

    async def test_the_network_determines_the_number_of_mel_bins(self, english_model: Path, tmp_path: Path) -> None:
        """Trainers save no preprocessor_config.json, and the library's default of 80 does not fit large-v3."""
        folder = shutil.copytree(english_model, tmp_path / "other")
        wrong = json.loads((folder / "preprocessor_config.json").read_text()) | {"feature_size": 128}
        (folder / "preprocessor_config.json").write_text(json.dumps(wrong))
        engine = whisper.engine()
        await engine.load(whisper_recipe(), folder, "cpu", Reports())
        await engine.close()

    async def test_recordings_share_steps_and_keep_their_words(self, english: Whisper, sounds: dict[str, Path]) -> None:
        names = ["long.flac", "short.wav", "pause.mp3", "long.flac"]
        alone = {name: segments(await everything(english, sounds[name])) for name in set(names)}
        together = await asyncio.gather(*(everything(english, sounds[name]) for name in names))
        for name, events in zip(names, together, strict=True):
            assert [(s.start, s.tokens) for s in segments(events)] == [(s.start, s.tokens) for s in alone[name]]
        assert max(event.batch for events in together for event in events if isinstance(event, Usage)) > 1

    async def test_windows_computed_on_several_cores_keep_their_words(
        self, english: Whisper, english_model: Path, sounds: dict[str, Path]
    ) -> None:
        names = ["long.flac", "short.wav", "pause.mp3", "long.flac"]
        alone = {name: segments(await everything(english, sounds[name])) for name in set(names)}
        spread = whisper.engine()
        await spread.load(whisper_recipe(threads=2), english_model, "cpu", Reports())
        try:
            together = await asyncio.gather(*(everything(spread, sounds[name], word_timestamps=True) for name in names))
        finally:
            await spread.close()
        for name, events in zip(names, together, strict=True):
            check(events, 40.0 if name == "long.flac" else events[-1].audio_seconds)  # type: ignore[union-attr]
            assert [s.tokens for s in segments(events)] == [s.tokens for s in alone[name]]
        assert max(event.batch for events in together for event in events if isinstance(event, Usage)) > 1

    @pytest.mark.parametrize("vad", [True, False])
    async def test_short_windows_lose_nothing_and_are_padded_no_further(
        self,
        short_windows: Whisper,
        sounds: dict[str, Path],
        monkeypatch: pytest.MonkeyPatch,
        vad: bool,
    ) -> None:
        """No window is longer than 5 s, nothing is lost between windows, and the network computes no more than 8 s."""
        received: list[tuple[Any, float]] = []
        batcher = short_windows.model.batcher
        run = batcher.run

        def watched(windows: Any) -> Any:
            received.extend((window.features.shape, window.seconds) for window in windows)
            return run(windows)

        monkeypatch.setattr(batcher, "run", watched)
        events = await everything(short_windows, sounds["long.flac"], word_timestamps=True, vad=vad)
        check(events, 40.0)
        assert {shape for shape, _ in received} == {(80, 800)}
        assert max(seconds for _, seconds in received) <= 5.0
        assert sum(seconds for _, seconds in received) >= 39.0
        starts = [segment.start for segment in segments(events)]
        assert starts == sorted(starts)
        seeks = [0, *sorted({segment.seek for segment in segments(events)}), 4000]
        assert max(after - before for before, after in pairwise(seeks)) <= 500

    async def test_the_encoder_works_on_the_padded_window(self, short_windows: Whisper) -> None:
        model = short_windows.model.model
        assert model.whisper.encode(model.features(voice(5))).shape == [1, 400, 32]

    async def test_languages_and_words_in_short_windows(self, short_windows: Whisper, sounds: dict[str, Path]) -> None:
        reported, translated = await asyncio.gather(
            everything(short_windows, sounds["short.wav"], word_timestamps=True),
            everything(short_windows, sounds["short.wav"], language="de", task="translate", word_timestamps=True),
        )
        for events in (reported, translated):
            check(events, 5.0)
        assert isinstance(reported[0], TranscriptInfo)
        assert 0 < reported[0].language_probability < 1

    async def test_a_language_is_detected_or_as_requested(self, multilingual: Whisper, sounds: dict[str, Path]) -> None:
        reported, given, translated = await asyncio.gather(
            everything(multilingual, sounds["short.wav"]),
            everything(multilingual, sounds["short.wav"], language="de"),
            everything(multilingual, sounds["short.wav"], language="de", task="translate", word_timestamps=True),
        )
        for events in (reported, given, translated):
            check(events, 5.0)
        assert isinstance(reported[0], TranscriptInfo)
        assert 0 < reported[0].language_probability < 1
        assert isinstance(given[0], TranscriptInfo)
        assert (given[0].language, given[0].language_probability) == ("de", 1.0)
        with pytest.raises(BadRequest, match="does not know the language 'xx'"):
            await everything(multilingual, sounds["short.wav"], language="xx")

    async def test_an_english_model_says_so(self, english: Whisper, sounds: dict[str, Path]) -> None:
        with pytest.raises(BadRequest, match="only English, not 'de'") as refused:
            await everything(english, sounds["short.wav"], language="de")
        assert refused.value.param == "language"
        with pytest.raises(BadRequest, match="cannot translate"):
            await everything(english, sounds["short.wav"], task="translate")

    async def test_files_that_cannot_be_used(self, english: Whisper, sounds: dict[str, Path], tmp_path: Path) -> None:
        (tmp_path / "broken.wav").write_bytes(b"RIFF" + bytes(100))
        with pytest.raises(BadRequest):
            await everything(english, tmp_path / "broken.wav")
        with pytest.raises(TooLarge, match="longer than 30"):
            await everything(english, sounds["long.flac"], max_seconds=30.0)
        await english.ping()

    async def test_a_lost_device_fails_the_heartbeat(
        self, english_model: Path, sounds: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Steps that fail for lack of memory do not, as later ones may have it."""
        cause = ["CUDA failed with error out of memory"]

        def fail(*_: object, **__: object) -> NoReturn:
            raise RuntimeError(cause[0])

        on_gpu = speech.examination
        monkeypatch.setattr(speech, "examination", lambda model, device: on_gpu(model, "cuda:0"))
        engine = whisper.engine()
        await engine.load(whisper_recipe(), english_model, "cpu", Reports())
        monkeypatch.setattr(engine.model.model, "_generate", fail)
        with pytest.raises(EngineFailed, match="out of memory"):
            await everything(engine, sounds["short.wav"])
        await engine.ping()
        cause[0] = "CUDA failed with error an illegal memory access was encountered"
        with pytest.raises(EngineFailed, match="illegal memory access"):
            await everything(engine, sounds["short.wav"])
        with pytest.raises(EngineFailed, match="speech is broken: RuntimeError: CUDA failed"):
            await engine.ping()
        await engine.close()

    async def test_windows_are_repeated_at_the_next_temperature_also_at_the_limit_of_recordings(
        self, english_model: Path, sounds: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = whisper.engine()
        await engine.load(whisper_recipe(at_once=1, waiting=1), english_model, "cpu", Reports())
        batcher = engine.model.batcher
        requested = threading.Semaphore(0)
        submit = batcher.submit

        def watched(*items: Any) -> Any:
            requested.release()
            return submit(*items)

        def run(windows: Sequence[WindowRequest]) -> list[WindowResult]:
            """Return a bad result at temperature 0 and a good one at the next.

            The first call waits until both recordings have submitted a window, and the second one until a window was
            submitted again.
            """
            for _ in range(next(awaited, 0)):
                requested.acquire()
            (window,) = windows
            well = -0.1 if window.temperature else -2.0
            return [WindowResult([TimedSegment(0.0, 1.0, [1])], "en", 1.0, window.temperature, well, 0.0, 1.0, ["x"])]

        awaited = iter((2, 1))
        monkeypatch.setattr(batcher, "submit", watched)
        monkeypatch.setattr(batcher, "run", run)
        received = await asyncio.gather(
            *(everything(engine, sounds["long.flac"], temperature=[0.0, 0.4], vad=True) for _ in range(2))
        )
        await engine.close()
        for events in received:
            assert len(segments(events)) > 1
            assert {segment.temperature for segment in segments(events)} == {0.4}

    async def test_a_recording_that_opens_after_its_client_has_left_is_closed(
        self, english: Whisper, sounds: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun, go_on, opened = threading.Event(), threading.Event(), list[Recording]()
        inner = english.model.decoders.open

        def late(path: str, seconds: float) -> Recording:
            begun.set()
            go_on.wait()
            opened.append(inner(path, seconds))
            return opened[0]

        monkeypatch.setattr(english.model.decoders, "open", late)
        task = asyncio.create_task(everything(english, sounds["short.wav"]))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        async with asyncio.timeout(200):
            while not opened or not opened[0]._closed:
                await asyncio.sleep(0.001)
        assert opened[0]._process._child.poll() is not None

    async def test_a_long_recording_comes_in_blocks_and_can_be_left(
        self, english: Whisper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path / "hours.flac", np.concatenate([*[voice(20), silence(40)] * 15]))
        batcher = english.model.batcher
        async with aclosing(english.model.transcribe(TranscribeRequest(path=str(path)))) as events:
            info = await anext(events)
            assert isinstance(info, TranscriptInfo)
            assert info.duration == pytest.approx(900.0, abs=1)
            assert isinstance(await anext(events), Segment)
            async for event in events:
                if isinstance(event, Usage):
                    break
            assert 15 < event.audio_seconds <= 90, "what was transcribed so far"
        assert english.model.running == 0
        await english.ping()
        assert not len(batcher._turns)
        sizes: list[int] = []
        blocks = TranscriptionRun._blocks

        async def watched(run: TranscriptionRun) -> Any:
            async with aclosing(blocks(run)) as source:
                async for block in source:
                    sizes.append(len(block.audio) + sum(len(window.audio) for window in block.windows))
                    yield block

        monkeypatch.setattr(TranscriptionRun, "_blocks", watched)
        events = await everything(english, path)
        check(events, 900.0)
        assert len(sizes) == 4
        assert max(sizes) <= 120 * RATE  # a block is 300 s, of which 20 s of each minute are speech
