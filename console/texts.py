"""Texts of the latest requests of teams that store them, in memory only.

| when                             | what happens                                                                |
|----------------------------------|-----------------------------------------------------------------------------|
| a team does not store texts      | its requests are not inspected; the default for every team                  |
| it does                          | the first MAX_CHARACTERS of prompt and of answer are kept                   |
| after MAX_TRANSCRIPTS more texts | they are deleted                                                            |
| the team stops storing           | all of its texts are deleted within a second                                |
| the server ends                  | they are lost; no file, log, metric or trace ever contains them             |

Texts are the words of messages and prompts, without images, audio, vectors and tool calls.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from models import sse
from registry.base.json import NOT_JSON

MAX_CHARACTERS = 8_192
"""Most characters of a prompt, and of an answer."""
MAX_TRANSCRIPTS = 1_000
LONGEST = 1 << 18
"""Most bytes of a body, or of an unstreamed answer, that are searched for texts."""
PROMPT_FIELDS = (
    "system", "instructions", "messages", "prompt", "input", "inputs", "query", "documents", "texts", "content",
         "text")  # fmt: skip
ANSWER_FIELDS = ("choices", "message", "delta", "output", "content", "token", "generated_text", "response", "text")
DELTAS = ("response.output_text.delta", "transcript.text.delta")
"""OpenAI's events with a piece of an answer's text."""


class Transcript:
    """The texts of one request. The answer grows while it streams."""

    def __init__(self, body: bytes = b"") -> None:
        self._prompt = _Words()
        self._answer = _Words()
        if len(body) <= LONGEST:
            self._prompt.add(_lines(_decoded(body), PROMPT_FIELDS))
        self._kind, self._whole, self._events = "", bytearray(), sse.Reader()

    @property
    def prompt(self) -> str:
        return self._prompt.text

    @property
    def answer(self) -> str:
        return self._answer.text

    def begin(self, content_type: str) -> None:
        """Start recording an answer of this content type. Discards the text of an earlier attempt."""
        self._kind, self._whole, self._events = content_type, bytearray(), sse.Reader()
        self._answer = _Words()

    def feed(self, data: bytes) -> None:
        if self._answer.is_full or not self._kind:
            return
        if self._kind.startswith("text/event-stream"):
            for event in self._events.feed(data):
                self._answer.add(_of_event(_decoded(event)))
            return
        if len(self._whole) <= LONGEST:
            self._whole += data
        if "ndjson" in self._kind:
            *lines, rest = bytes(self._whole).split(b"\n")
            self._whole = bytearray(rest)
            for line in lines:
                self._answer.add(_of_event(_decoded(line)))

    def end(self) -> None:
        """Finish the answer: store what has been received."""
        data, self._whole = bytes(self._whole), bytearray()
        if len(data) <= LONGEST and not self._kind.startswith("text/event-stream"):
            is_json = "json" in self._kind
            self._answer.add(_lines(_decoded(data), ANSWER_FIELDS) if is_json else [data.decode(errors="replace")])


class TranscriptStore:
    """Transcripts, used on the server's event loop. `find` is called in threads, too, where pages are rendered."""

    def __init__(self) -> None:
        self._teams: frozenset[str] = frozenset()
        self._transcripts: dict[tuple[str, str, float], Transcript] = {}

    def is_enabled(self, team: str) -> bool:
        return team in self._teams

    def set_teams(self, teams: Iterable[str]) -> None:
        """Store texts of these teams from now on, and delete those of all others."""
        self._teams = frozenset(teams)
        self._transcripts = {key: texts for key, texts in self._transcripts.items() if key[0] in self._teams}

    def add(self, team: str, id_: str, at: float, texts: Transcript) -> None:
        """Add the transcript of a request that ended at `at`."""
        if team not in self._teams:
            return
        self._transcripts[team, id_, at] = texts
        while len(self._transcripts) > MAX_TRANSCRIPTS:
            del self._transcripts[next(iter(self._transcripts))]

    def find(self, team: str, id_: str, at: float) -> Transcript | None:
        return self._transcripts.get((team, id_, at))


class _Words:
    """Pieces of text, limited to MAX_CHARACTERS."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._remaining = MAX_CHARACTERS

    @property
    def is_full(self) -> bool:
        return self._remaining <= 0

    @property
    def text(self) -> str:
        return "".join(self._pieces) + (" …" if self.is_full else "")

    def add(self, pieces: Iterable[str]) -> None:
        for piece in pieces:
            if self.is_full:
                return
            self._pieces.append(piece[: self._remaining])
            self._remaining -= len(piece)


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except NOT_JSON:
        return None


def _of_event(event: Any) -> Iterator[str]:
    """Return the texts of a streamed event. OpenAI's Responses and transcripts repeat the whole text at the end."""
    kind = event.get("type") if isinstance(event, Mapping) else None
    if isinstance(kind, str) and kind.startswith(("response.", "transcript.")) and kind not in DELTAS:
        return iter(())
    return _texts_below(event, ANSWER_FIELDS)


def _lines(value: Any, names: tuple[str, ...]) -> Iterator[str]:
    """Yield each text on a line of its own, after its speaker."""
    for index, text in enumerate(_texts_below(value, names)):
        yield f"\n{text}" if index else text


def _texts_below(value: Any, names: tuple[str, ...], depth: int = 8) -> Iterator[str]:
    """Yield the texts below these names, in order."""
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, list):
        for one in value:
            yield from _texts_below(one, names, depth - 1)
    elif depth and isinstance(value, Mapping):
        if names is PROMPT_FIELDS and isinstance(role := value.get("role"), str):
            yield f"[{role[:32]}]"
        for name in names:
            if value.get(name):
                yield from _texts_below(value[name], names, depth - 1)
                if name in ("token", "choices"):  # the rest repeats it
                    return
