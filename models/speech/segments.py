"""Segments and words of a window, with their times."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

STEP = 0.02
"""Seconds between consecutive time tokens of Whisper."""
LONGEST_TYPICAL = 0.7
"""Most seconds for the typical length of a word."""
REACH = 0.5
"""Seconds by which a word may reach beyond its segment."""
SENTENCE_ENDS = ".。!！?？"


@dataclass(slots=True)
class TimedSegment:
    """A segment. `closed`: the network gave its end. `before`: the end of the previous segment, as the network gave it,
    regardless of word times."""

    start: float
    end: float
    tokens: list[int]
    closed: bool = True
    before: float = 0.0
    words: list["TimedWord"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TimedWord:
    start: float
    end: float
    word: str
    probability: float


def split(tokens: Sequence[int], first_time: int, end_of_text: int, seconds: float) -> list[TimedSegment]:
    """Split tokens into segments at time tokens.

    Text after the last time token becomes a segment up to the window's end. Two time tokens at the end become a segment
    without text, for speech that the network noticed but did not write.

    Args:
        tokens: the network's output.
        first_time: id of the token for 0.00; larger ids are times.
        end_of_text: ids from this one on are not text.
        seconds: length of the window.
    """
    segments: list[TimedSegment] = []
    start, before, text = 0.0, 0.0, list[int]()
    for token in tokens:
        if token >= first_time:
            time = min(max((token - first_time) * STEP, start), seconds)
            if text:
                segments.append(TimedSegment(start, max(time, start), text, before=before))
                before, text = time, []
            start = time
        elif token < end_of_text:
            text.append(token)
    if text or (segments and min(tokens[-2:]) >= first_time):
        segments.append(TimedSegment(start, max(seconds, start), text, closed=False, before=before))
    return segments


def shorten_words(aligned: Sequence[dict[str, Any]]) -> float:
    """Shorten overlong words beside the end of a sentence, and return the typical length of a word in seconds.

    Attention has no place for silence, so the words beside it reach into it. Must run before punctuation is merged.
    This and `place_words` follow faster-whisper's `add_word_timestamps`.
    """
    lengths = [length for word in aligned if (length := word["end"] - word["start"])]
    typical = min(LONGEST_TYPICAL, float(np.median(lengths))) if lengths else 0.0
    for previous, word in pairwise(aligned if lengths else ()):
        if word["end"] - word["start"] > 2 * typical:
            if word["word"] in SENTENCE_ENDS:
                word["end"] = word["start"] + 2 * typical
            elif previous["word"] in SENTENCE_ENDS:
                word["start"] = word["end"] - 2 * typical
    return typical


def place_words(
    segments: Sequence[TimedSegment], aligned: Sequence[dict[str, Any]], seconds: float, typical: float
) -> None:
    """Assign words to segments by counting tokens, and set segments' times from their words.

    Where the first or last word reaches far beyond its segment, into silence, the word is shortened instead.
    typical: the length of a word, from `shorten_words`.
    """
    words, count, border, spoken = iter(aligned), 0, 0, 0.0
    for segment in segments:
        border += len(segment.tokens)
        timed: list[tuple[float, float, str, float]] = []
        while count < border and (word := next(words, None)) is not None:
            count += len(word["tokens"])
            if word["word"].strip():
                timed.append((float(word["start"]), float(word["end"]), word["word"], float(word["probability"])))
        if not timed:
            continue
        starts, ends = [start for start, *_ in timed], [end for _, end, *_ in timed]
        _shorten_first(starts, ends, spoken, typical)
        if segment.start < ends[0] and segment.start - REACH > starts[0]:
            starts[0] = max(starts[0], min(ends[0] - typical, segment.start))
        if segment.end > starts[-1] and segment.end + REACH < ends[-1]:
            ends[-1] = min(ends[-1], max(starts[-1] + typical, segment.end))
        for start, end, (_, _, text, probability) in zip(starts, ends, timed, strict=True):
            start = min(start, seconds)
            end = min(max(end, start), seconds)
            segment.words.append(TimedWord(round(start, 2), round(end, 2), text, probability))
        segment.start, segment.end = segment.words[0].start, segment.words[-1].end
        spoken = segment.end


def _shorten_first(starts: list[float], ends: list[float], spoken: float, typical: float) -> None:
    """Shorten the first words of a segment if they follow a pause. spoken: the end of the words before."""
    longest, several = 2 * typical, len(starts) > 1
    long = ends[0] - starts[0] > longest or (several and ends[1] - starts[0] > 2 * longest)
    if ends[0] - spoken <= 2 * longest or not long:
        return
    if several and ends[1] - starts[1] > longest:
        ends[0] = starts[1] = max(ends[1] / 2, ends[1] - longest)
    starts[0] = max(starts[0], ends[0] - longest)
