"""One recording from its first block to its last segment, in bounded memory.

While the windows of one block are heard, the next block is made (`transcribe_read`). With voice detection the
windows are the stretches that hold speech; without it they follow each other as Whisper's long form does: each begins
where the last finished segment of the one before ended.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import numpy as np

from models.batching.plan import Item
from models.batching.worker import Batcher
from models.messages import Segment, TranscribeRequest, TranscriptInfo, Usage, Word
from models.speech.audio import RATE, Recording
from models.speech.memory import lean, trim
from models.speech.model import Heard, Listen, SpeechModel
from models.speech.read import Block, read
from models.speech.windows import Piece, Samples, Window

SEEK_STEP = RATE // 2
"""Without voice detection, a window moves on by at least this many samples."""
SHORTEST = RATE // 50
"""Samples of one position of the encoder: in less there is nothing to hear."""


class TranscriptionRun:
    """`vad_threshold`: None hears everything, silence too."""

    def __init__(
        self,
        model: SpeechModel,
        batcher: Batcher[Listen, Heard],
        request: TranscribeRequest,
        recording: Recording,
        vad_threshold: float | None,
    ) -> None:
        self._model, self._batcher, self._request = model, batcher, request
        self._recording, self._threshold = recording, vad_threshold
        self._window = model.window.seconds * RATE
        self._previous = model.previous(request.prompt, request.hotwords)
        # a model of one language need not hear a first window to know which
        self._language, self._probability = request.language if model.multilingual else "en", 1.0
        self._count = self._tokens = self._batch = 0
        self._speech = 0.0
        self._rest: Samples = np.zeros(0, dtype=np.float32)

    async def events(self) -> AsyncGenerator[TranscriptInfo | Segment | Usage, None]:
        """TranscriptInfo as soon as the language is known, segments as they come, and Usage after those of each window
        and at the end.

        Of a recording of more than one block the first TranscriptInfo has the length that its file claims; another
        with the measured one comes before Usage.
        """
        known: TranscriptInfo | None = None
        async with aclosing(self._blocks()) as blocks:
            async for block in blocks:
                if self._threshold is None:
                    heard = self._follow(block)
                else:
                    self._speech += sum(window.seconds for window in block.windows)
                    heard = self._hear(block.windows)
                async with aclosing(heard) as found:
                    async for window, one in found:
                        if known is None:
                            known = self._info(exact=block.final and self._threshold is not None)
                            yield known
                        for segment in self._segments(window, one):
                            yield segment
                        yield self._usage(window.end)
        whole = self._info(exact=True)
        if whole != known:
            yield whole
        yield self._usage(self._recording.samples / RATE)

    def _usage(self, seconds: float) -> Usage:
        """Of the recording up to there."""
        return Usage(completion_tokens=self._tokens, audio_seconds=round(seconds, 3), batch=self._batch)

    def _info(self, *, exact: bool) -> TranscriptInfo:
        measured = self._recording.samples / RATE
        length = measured if exact else max(self._recording.length or 0.0, measured)
        return TranscriptInfo(
            language=self._language or "en",
            language_probability=self._probability if self._language else 0.0,
            duration=round(length, 3),
            duration_after_vad=round(self._speech if exact or self._threshold is not None else length, 3),
        )

    async def _blocks(self) -> AsyncGenerator[Block, None]:
        """Blocks in order, the next one being prepared while one is used."""
        source = read(self._recording, self._threshold, self._window)
        task = asyncio.ensure_future(asyncio.to_thread(next, source, None))
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: task.cancel())
            long = False
            while (block := await task) is not None:
                if long:
                    await asyncio.to_thread(trim)
                elif not block.final:
                    stack.enter_context(lean())
                    long = True
                task = asyncio.ensure_future(asyncio.to_thread(next, source, None))
                yield block

    async def _hear(self, windows: list[Window]) -> AsyncGenerator[tuple[Window, Heard], None]:
        """Windows that do not depend on each other. The first one tells the language to the others."""
        if windows and self._language is None:
            first, windows = windows[0], windows[1:]
            yield first, await self._one(first)
        listens = await asyncio.to_thread(lambda: [self._listen(window, 0) for window in windows])
        items = [Item(place, self._model.window.padded, listen) for place, listen in enumerate(listens)]
        waiting: dict[int, Heard] = {}
        turn = 0
        async with aclosing(self._batcher.stream(items)) as results:
            async for place, heard in results:
                waiting[place] = heard
                while turn in waiting:
                    yield windows[turn], await self._better(windows[turn], waiting.pop(turn))
                    turn += 1

    async def _one(self, window: Window) -> Heard:
        listen = await asyncio.to_thread(self._listen, window, 0)
        heard = (await self._batcher.submit([Item(0, self._model.window.padded, listen)])).results[0]
        if self._language is None:
            self._language, self._probability = heard.language, heard.language_probability
        return await self._better(window, heard)

    async def _better(self, window: Window, heard: Heard) -> Heard:
        """Again at the next temperatures while what was heard is poor. If it stays so the likeliest text counts, of
        those that do not repeat themselves if there are any, as faster-whisper has it."""
        self._batch = max(self._batch, heard.batch)
        tried = [heard]
        while tried[-1].poor and len(tried) < len(self._request.temperature):
            listen = await asyncio.to_thread(self._listen, window, len(tried))
            tried += (await self._batcher.submit([Item(0, self._model.window.padded, listen)])).results
        return max(tried, key=lambda one: (not one.poor, not one.repeats, one.avg_logprob))

    def _listen(self, window: Window, step: int) -> Listen:
        return Listen(
            features=self._model.features(window.audio),
            seconds=window.seconds,
            task=self._request.task,
            language=self._language,
            previous=self._previous,
            temperature=self._request.temperature[step] if self._request.temperature else 0.0,
            words=self._request.word_timestamps,
        )

    async def _follow(self, block: Block) -> AsyncGenerator[tuple[Window, Heard], None]:
        """Windows one after the other; what is left of a block at its end, less than one, comes with the next."""
        samples = np.concatenate([self._rest, block.audio])
        offset = block.offset - len(self._rest)
        place = 0
        least = SHORTEST if block.final else self._window
        while len(samples) - place >= least:
            audio = samples[place : place + self._window]
            window = Window(audio, (Piece(0.0, (offset + place) / RATE, len(audio) / RATE),))
            heard = await self._one(window)
            move = len(audio)
            last = heard.segments[-1] if len(heard.segments) > 1 else None
            if last and not last.closed and (len(audio) == self._window or not last.tokens):
                cut_off = round(last.before * RATE)
                if cut_off >= SEEK_STEP:
                    move = cut_off
                    heard.segments.pop()
                    heard.texts.pop()
            self._speech += move / RATE
            yield window, heard
            place += move
        self._rest = samples[place:].copy()

    def _segments(self, window: Window, heard: Heard) -> Iterator[Segment]:
        if heard.silent:
            return
        for said, text in zip(heard.segments, heard.texts, strict=True):
            if not text.strip():
                continue
            self._tokens += len(said.tokens)
            yield Segment(
                id=self._count,
                seek=int(window.pieces[0].start * 100),
                start=round(window.time(said.start), 2),
                end=round(max(window.time(said.end, end=True), window.time(said.start)), 2),
                text=text,
                tokens=said.tokens,
                temperature=heard.temperature,
                avg_logprob=heard.avg_logprob,
                compression_ratio=heard.compression_ratio,
                no_speech_prob=heard.no_speech_prob,
                words=[
                    Word(
                        start=round(window.time(word.start), 2),
                        end=round(max(window.time(word.end, end=True), window.time(word.start)), 2),
                        word=word.word,
                        probability=word.probability,
                    )
                    for word in said.words
                ]
                if self._request.word_timestamps
                else None,
            )
            self._count += 1
