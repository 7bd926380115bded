"""Requests as bytes, one JSON object per line, and the file of those worth sending again."""

import re
from pathlib import Path

import msgspec

from runtime.http.openapi import OPERATIONS

FOLDER = Path(__file__).parent / "corpus"
SEEDS, KEPT = FOLDER / "seeds.jsonl", FOLDER / "kept.jsonl"
LONGEST, MOST_NEW = 4096, 200
"""Most bytes of a saved request, because people read the corpus, too; most new requests per run."""


_ROUTES = {path: re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for _, path in OPERATIONS}


class Raw(msgspec.Struct, frozen=True):
    """One request. Text is latin-1, so that every byte has a letter. Sending adds Host and Content-Length."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def route(self) -> str:
        """Return the route in the OpenAPI document, or ''. A path without a parameter is its own route."""
        return (
            self.path
            if self.path in _ROUTES
            else next((route for route, known in _ROUTES.items() if known.fullmatch(self.path)), "")
        )

    def header(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found.lower() == name), None)


def read(*files: Path) -> list[Raw]:
    lines = [line for file in files if file.exists() for line in file.read_bytes().splitlines() if line.strip()]
    return [msgspec.json.decode(line, type=Raw) for line in lines]


class NewOutcomes:
    """Requests that had a new outcome, `(route, status, code)`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._outcomes: set[tuple[str, int, str]] = set()
        self.new: list[Raw] = []

    def saw(self, raw: Raw, outcome: tuple[str, int, str], *, known: bool = False) -> bool:
        """Return whether the request is to be saved. known: it came from the corpus."""
        if outcome in self._outcomes:
            return False
        self._outcomes.add(outcome)
        if known or len(msgspec.json.encode(raw)) > LONGEST or len(self.new) >= MOST_NEW:
            return False
        self.new.append(raw)
        return True

    def save(self) -> None:
        with self._file.open("ab") as file:
            for raw in self.new:
                file.write(msgspec.json.encode(raw) + b"\n")
