"""Transcribe one recording, from its first block to its last segment, in bounded memory.

While the windows of one block are transcribed, the next block is prepared (`windows.read`). With voice detection the
windows contain the stretches of speech. Without it they follow each other as in Whisper's long form: each starts where
the last finished segment of the previous one ended.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import numpy as np

from models.batching.plan import Item
from models.batching.worker import Batcher
from models.messages import Segment, TranscribeRequest, TranscriptInfo, Usage, Word
from models.speech.audio import Recording, Samples
from models.speech.decoder import RATE
from models.speech.libraries import lean, trim
from models.speech.model import SpeechModel, WindowRequest, WindowResult
from models.speech.windows import PAD, Block, Piece, Window, read

SEEK_STEP = RATE // 2
"""Least samples by which windows advance without voice detection."""
SHORTEST = RATE // 50
"""Samples of one encoder position, and so the shortest window."""


class TranscriptionRun:
    """A transcription in progress. vad_threshold: None to transcribe everything, including silence."""

    def __init__(
        self,
        model: SpeechModel,
        batcher: Batcher[WindowRequest, WindowResult],
        request: TranscribeRequest,
        recording: Recording,
        vad_threshold: float | None,
    ) -> None:
        self._model, self._batcher, self._request = model, batcher, request
        self._recording, self._threshold = recording, vad_threshold
        self._window = model.window.seconds * RATE
        self._previous = model.previous(request.prompt, request.hotwords)
        # a model with one language need not detect it
        self._language, self._probability = request.language if model.multilingual else "en", 1.0
        self._count = self._tokens = self._batch = 0
        self._speech = 0.0
        self._rest: Samples = np.zeros(0, dtype=np.float32)

    async def events(self) -> AsyncGenerator[TranscriptInfo | Segment | Usage, None]:
        """Yield TranscriptInfo once the language is known, Segments, and Usage.

        Usage comes after the segments of each window, and at the end. If a recording has more than one block, the first
        TranscriptInfo has the length given by its file, and a second one with the measured length comes before the
        last Usage.
        """
        known: TranscriptInfo | None = None
        async with aclosing(self._blocks()) as blocks:
            async for block in blocks:
                if self._threshold is None:
                    results = self._follow(block)
                else:
                    self._speech += sum(window.seconds for window in block.windows)
                    results = self._hear(block.windows)
                async with aclosing(results) as open_results:
                    async for window, result in open_results:
                        if known is None:
                            known = self._info(exact=block.final and self._threshold is not None)
                            yield known
                        for segment in self._segments(window, result):
                            yield segment
                        yield self._usage(window.end)
        whole = self._info(exact=True)
        if whole != known:
            yield whole
        yield self._usage(self._recording.samples / RATE)

    def _usage(self, seconds: float) -> Usage:
        """Return the usage for the recording up to a time."""
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
        """Yield blocks in order, and prepare the next one meanwhile."""
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

    async def _hear(self, windows: list[Window]) -> AsyncGenerator[tuple[Window, WindowResult], None]:
        """Transcribe independent windows. The first one determines the language of all."""
        if windows and self._language is None:
            first, windows = windows[0], windows[1:]
            yield first, await self._transcribe_window(first)
        listens = await asyncio.to_thread(lambda: [self._listen(window, 0) for window in windows])
        items = [Item(index, self._model.window.padded, listen) for index, listen in enumerate(listens)]
        waiting: dict[int, WindowResult] = {}
        turn = 0
        async with aclosing(self._batcher.stream(items)) as results:
            async for index, result in results:
                waiting[index] = result
                while turn in waiting:
                    yield windows[turn], await self._retry_while_poor(windows[turn], waiting.pop(turn))
                    turn += 1

    async def _transcribe_window(self, window: Window) -> WindowResult:
        listen = await asyncio.to_thread(self._listen, window, 0)
        result = (await self._batcher.submit([Item(0, self._model.window.padded, listen)])).results[0]
        if self._language is None:
            self._language, self._probability = result.language, result.language_probability
        return await self._retry_while_poor(window, result)

    async def _retry_while_poor(self, window: Window, result: WindowResult) -> WindowResult:
        """Retry at the next temperatures while the result is poor.

        If all are poor, use the likeliest text that does not repeat itself, or else the likeliest, as faster-whisper
        does.
        """
        self._batch = max(self._batch, result.batch)
        tried = [result]
        while tried[-1].poor and len(tried) < len(self._request.temperature):
            listen = await asyncio.to_thread(self._listen, window, len(tried))
            tried += (await self._batcher.submit([Item(0, self._model.window.padded, listen)])).results
        return max(tried, key=lambda result: (not result.poor, not result.repeats, result.avg_logprob))

    def _listen(self, window: Window, step: int) -> WindowRequest:
        return WindowRequest(
            features=self._model.features(window.audio),
            seconds=window.seconds,
            task=self._request.task,
            language=self._language,
            previous=self._previous,
            temperature=self._request.temperature[step] if self._request.temperature else 0.0,
            words=self._request.word_timestamps,
        )

    async def _follow(self, block: Block) -> AsyncGenerator[tuple[Window, WindowResult], None]:
        """Transcribe windows in order. A short rest of a block is joined to the next block."""
        samples = np.concatenate([self._rest, block.audio])
        offset = block.offset - len(self._rest)
        position = 0
        least = SHORTEST if block.final else self._window
        while len(samples) - position >= least:
            audio = samples[position : position + self._window]
            window = Window(audio, (Piece(0.0, (offset + position) / RATE, len(audio) / RATE),))
            result = await self._transcribe_window(window)
            move = len(audio)
            last = result.segments[-1] if len(result.segments) > 1 and not result.silent else None
            if last and not last.closed and (len(audio) == self._window or not last.tokens):
                cut_off = round(last.before * RATE)
                if cut_off >= SEEK_STEP:
                    move = cut_off
                    result.segments.pop()
                    result.texts.pop()
            self._speech += move / RATE
            yield window, result
            position += move
        self._rest = samples[position:].copy()

    def _segments(self, window: Window, result: WindowResult) -> Iterator[Segment]:
        if result.silent:
            return
        for segment, text in zip(result.segments, result.texts, strict=True):
            if not text.strip():
                continue
            self._tokens += len(segment.tokens)
            # padding is silent, so a segment that reaches only into the padding of another stretch is not in it
            start, end = window.span(segment.start, segment.end, PAD / RATE)
            spans = [window.span(word.start, word.end) for word in segment.words]
            if spans:
                start, end = spans[0][0], spans[-1][1]
            yield Segment(
                id=self._count,
                seek=round(window.pieces[0].start * 100),
                start=round(start, 2),
                end=round(end, 2),
                text=text,
                tokens=segment.tokens,
                temperature=result.temperature,
                avg_logprob=result.avg_logprob,
                compression_ratio=result.compression_ratio,
                no_speech_prob=result.no_speech_prob,
                words=[
                    Word(start=round(start, 2), end=round(end, 2), word=word.word, probability=word.probability)
                    for word, (start, end) in zip(segment.words, spans, strict=True)
                ]
                if self._request.word_timestamps
                else None,
            )
            self._count += 1
