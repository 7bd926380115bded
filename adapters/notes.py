"""Notes from the check of an adapter's files, kept beside the store by digest."""

import contextlib
from pathlib import Path

import msgspec

from registry.base.json import NOT_JSON


class AdapterNotes:
    """One small file per digest that has notes; a missing file means no notes. Writing and removing block."""

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
        with contextlib.suppress(OSError):  # an adapter is registered even if its notes cannot be kept
            if notes:
                self._root.mkdir(exist_ok=True)
                self._file(digest).write_bytes(msgspec.json.encode(notes))
            else:
                self._file(digest).unlink(missing_ok=True)

    def remove(self, digest: str) -> None:
        self._known.pop(digest, None)
        with contextlib.suppress(OSError):
            self._file(digest).unlink(missing_ok=True)

    def _file(self, digest: str) -> Path:
        return self._root / f"{digest.removeprefix('sha256:')}.json"
