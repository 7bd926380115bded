"""Notes that a check made of an adapter, kept beside the store by its digest."""

import contextlib
from pathlib import Path

import msgspec

from registry.base.json import NOT_JSON


class AdapterNotes:
    """A small file for each digest with notes. Lost ones are no fault. Writing and removing block."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._known: dict[str, tuple[str, ...]] = {}

    def of(self, digest: str) -> tuple[str, ...]:
        if digest not in self._known:
            try:
                self._known[digest] = msgspec.json.decode(self._file(digest).read_bytes(), type=tuple[str, ...])
            except (OSError, *NOT_JSON):
                self._known[digest] = ()
        return self._known[digest]

    def write(self, digest: str, notes: tuple[str, ...]) -> None:
        """Replace the notes of a digest."""
        self._known[digest] = notes
        if not notes:
            self._file(digest).unlink(missing_ok=True)
            return
        with contextlib.suppress(OSError):  # the adapter counts, not what is said of it
            self._root.mkdir(exist_ok=True)
            self._file(digest).write_bytes(msgspec.json.encode(notes))

    def remove(self, digest: str) -> None:
        self._known.pop(digest, None)
        with contextlib.suppress(OSError):
            self._file(digest).unlink(missing_ok=True)

    def _file(self, digest: str) -> Path:
        return self._root / f"{digest.removeprefix('sha256:')}.json"
