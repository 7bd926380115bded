"""From the network's tokens to segments and words, in seconds from the start of the window. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

STEP = 0.02
"""Seconds between two of Whisper's time tokens."""


@dataclass(slots=True)
class TimedSegment:
    """A segment. `closed`: the network said when it ends. `before`: when the one before it ended, as the network said,
    whatever times words have."""

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
    """Segments between time tokens. Text after the last time token is kept as a segment up to the window's end; one
    without text is what the network says begins there and does not write: two time tokens at the end.

    Args:
        tokens: as the network gave them.
        first_time: id of the token for 0.00; larger ids are times.
        end_of_text: ids from this one on are no text.
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


def place_words(segments: Sequence[TimedSegment], aligned: Sequence[dict[str, object]], seconds: float) -> None:
    """Give each segment the words that begin in it, by counting tokens; its times become those of its first and last
    word."""
    words, taken, border = iter(aligned), 0, 0
    for segment in segments:
        border += len(segment.tokens)
        while taken < border and (word := next(words, None)) is not None:
            taken += len(word["tokens"])  # type: ignore[arg-type]
            if str(word["word"]).strip():
                start = min(float(str(word["start"])), seconds)
                end = min(max(float(str(word["end"])), start), seconds)
                timed = TimedWord(round(start, 2), round(end, 2), str(word["word"]), float(str(word["probability"])))
                segment.words.append(timed)
        if segment.words:
            segment.start, segment.end = segment.words[0].start, segment.words[-1].end
