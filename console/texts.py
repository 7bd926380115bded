"""What was asked and answered, for teams that have it kept: in memory only, beside the last requests.

| when                             | what happens                                                                |
|----------------------------------|-----------------------------------------------------------------------------|
| a team does not have texts kept  | nothing of its requests is looked at: so for every team, unless it is changed |
| it does                          | MAX_CHARACTERS of what was asked and as many of what was answered are kept  |
| KEPT requests with texts later   | they are gone                                                               |
| the team has them kept no longer | all of its texts are gone, within a second                                  |
| the server ends                  | they are gone: no file, no log, no metric and no trace ever has them        |

Texts are words of messages and prompts; pictures, sounds, vectors and calls of tools are none.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from models import sse
from registry.json import NOT_JSON

MAX_CHARACTERS = 8_192
"""Characters of a request, and of its answer."""
KEPT = 1_000
LONGEST = 1 << 18
"""Bytes of a body, or of an answer that is no stream, that are looked through."""
ASKED = ("system", "instructions", "messages", "prompt", "input", "inputs", "query", "documents", "texts", "content",
         "text")  # fmt: skip
ANSWERED = ("choices", "message", "delta", "output", "content", "token", "generated_text", "response", "text")


class Texts:
    """Of one request; its answer grows as it comes."""

    def __init__(self, body: bytes = b"") -> None:
        self._asked = _Words()
        self._answered = _Words()
        if len(body) <= LONGEST:
            self._asked.add(_lines(_decoded(body), ASKED))
        self._kind, self._whole, self._events = "", bytearray(), sse.Reader()

    @property
    def asked(self) -> str:
        return self._asked.text

    @property
    def answered(self) -> str:
        return self._answered.text

    def begin(self, content_type: str) -> None:
        """The answer's first bytes come, and are this. What came of an attempt before counts no more."""
        self._kind, self._whole, self._events = content_type, bytearray(), sse.Reader()
        self._answered = _Words()

    def feed(self, data: bytes) -> None:
        if self._answered.is_full or not self._kind:
            return
        if self._kind.startswith("text/event-stream"):
            for event in self._events.feed(data):
                self._answered.add(_of_event(_decoded(event)))
            return
        if len(self._whole) <= LONGEST:
            self._whole += data
        if "ndjson" in self._kind:
            *lines, rest = bytes(self._whole).split(b"\n")
            self._whole = bytearray(rest)
            for line in lines:
                self._answered.add(_of_event(_decoded(line)))

    def end(self) -> None:
        """Nothing more comes."""
        data, self._whole = bytes(self._whole), bytearray()
        if len(data) <= LONGEST and not self._kind.startswith("text/event-stream"):
            is_json = "json" in self._kind
            self._answered.add(_lines(_decoded(data), ANSWERED) if is_json else [data.decode(errors="replace")])


class TextStore:
    """On the server's event loop; pages, which are written in threads, ask `find`."""

    def __init__(self) -> None:
        self._teams: frozenset[str] = frozenset()
        self._kept: dict[tuple[str, str, float], Texts] = {}

    def keeps(self, team: str) -> bool:
        return team in self._teams

    def allow(self, teams: Iterable[str]) -> None:
        """From now on these teams have texts kept. Those of all others are gone."""
        self._teams = frozenset(teams)
        self._kept = {key: texts for key, texts in self._kept.items() if key[0] in self._teams}

    def keep(self, team: str, id_: str, at: float, texts: Texts) -> None:
        """Of the request that ended then."""
        if team not in self._teams:
            return
        self._kept[team, id_, at] = texts
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def find(self, team: str, id_: str, at: float) -> Texts | None:
        return self._kept.get((team, id_, at))


class _Words:
    """Pieces of text, up to MAX_CHARACTERS."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._left = MAX_CHARACTERS

    @property
    def is_full(self) -> bool:
        return self._left <= 0

    @property
    def text(self) -> str:
        return "".join(self._pieces) + (" …" if self.is_full else "")

    def add(self, pieces: Iterable[str]) -> None:
        for piece in pieces:
            if self.is_full:
                return
            self._pieces.append(piece[: self._left])
            self._left -= len(piece)


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except NOT_JSON:
        return None


def _of_event(event: Any) -> Iterator[str]:
    """Of a piece of a streamed answer. OpenAI's Responses tell all of it once more at the end of each part."""
    kind = event.get("type") if isinstance(event, Mapping) else None
    if isinstance(kind, str) and kind.startswith("response.") and kind != "response.output_text.delta":
        return iter(())
    return _said(event, ANSWERED)


def _lines(value: Any, names: tuple[str, ...]) -> Iterator[str]:
    """Each on a line of its own, behind who said it."""
    for place, text in enumerate(_said(value, names)):
        yield f"\n{text}" if place else text


def _said(value: Any, names: tuple[str, ...], depth: int = 8) -> Iterator[str]:
    """The texts that stand below these names, in their order."""
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, list):
        for one in value:
            yield from _said(one, names, depth - 1)
    elif depth and isinstance(value, Mapping):
        if names is ASKED and isinstance(role := value.get("role"), str):
            yield f"[{role[:32]}]"
        for name in names:
            if value.get(name):
                yield from _said(value[name], names, depth - 1)
                if name in ("token", "choices"):  # what follows is the same once more
                    return
