"""Bytes of files in pieces in a table, available to all gateways on the database."""

import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from batches.content.folder import FOLDER, INCOMING
from batches.content.protocol import CHUNK
from batches.storage.tables import FILES, PIECES
from registry.storage.database import Database
from registry.storage.files import make_private

PIECE = 1 << 20
"""Bytes per piece, except the last."""
ORPHAN_SECONDS = 3600.0
"""Age at which bytes without a row are deleted: the server that stored them may have died in between."""


class PieceBytes:
    """`batches.content.protocol.FileBytes`, for servers on PostgreSQL. data_dir: for unfinished uploads."""

    def __init__(self, database: Database, data_dir: Path) -> None:
        self._database, self._folder = database, data_dir / FOLDER
        self._orphans: dict[str, float] = {}
        """Files without a row, and when they were first seen."""

    @property
    def incoming(self) -> Path:
        return self._folder / INCOMING

    def store(self, file_id: str, source: Path) -> None:
        with source.open("rb") as file, self._database.write() as connection:
            connection.execute(sa.delete(PIECES).where(PIECES.c.file == file_id))
            number = 0
            while data := file.read(PIECE):
                connection.execute(sa.insert(PIECES).values(file=file_id, number=number, data=data))
                number += 1
            if not number:  # an empty file needs a piece, too
                connection.execute(sa.insert(PIECES).values(file=file_id, number=0, data=b""))
        source.unlink(missing_ok=True)

    def read(self, file_id: str, offset: int, length: int) -> bytes:
        first, last = offset // PIECE, max(offset, offset + length - 1) // PIECE
        begin = sa.case((PIECES.c.number == first, offset - first * PIECE), else_=0) + 1
        part = sa.func.substr(PIECES.c.data, begin, length)
        query = sa.select(part).where(PIECES.c.file == file_id, PIECES.c.number.between(first, last))
        with self._database.read() as connection:
            parts = list(connection.execute(query.order_by(PIECES.c.number)).scalars())
            if not parts and not self._has(connection, file_id):
                raise FileNotFoundError(file_id)
        return b"".join(part or b"" for part in parts)[:length]

    def chunks(self, file_id: str, start: int, end: int) -> Iterator[bytes]:
        while start < end and (data := self.read(file_id, start, min(CHUNK, end - start))):
            start += len(data)
            yield data

    @contextmanager
    def local_path(self, file_id: str) -> Iterator[Path]:
        make_private(self._folder)
        make_private(self.incoming)
        with tempfile.NamedTemporaryFile(dir=self.incoming, prefix="check-") as copy:
            position = 0
            while data := self.read(file_id, position, PIECE):
                copy.write(data)
                position += len(data)
            copy.flush()
            yield Path(copy.name)

    def delete(self, file_id: str) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(PIECES).where(PIECES.c.file == file_id))

    def remove_orphans(self) -> int:
        """Delete pieces without a row for `ORPHAN_SECONDS`: a row is written in a transaction after its bytes."""
        is_first = sa.and_(PIECES.c.number == 0, ~sa.exists().where(FILES.c.id == PIECES.c.file))
        with self._database.read() as connection:
            files = list(connection.execute(sa.select(PIECES.c.file).where(is_first)).scalars())
        now = time.monotonic()
        self._orphans = {file_id: self._orphans.get(file_id, now) for file_id in files}
        orphans = [file_id for file_id, since in self._orphans.items() if now - since >= ORPHAN_SECONDS]
        for file_id in orphans:
            self.delete(file_id)
        return len(orphans)

    def keep_only(self, file_ids: Collection[str]) -> int:
        """Remove this server's unfinished uploads only: other gateways may be storing files that have no row yet."""
        for half in self.incoming.iterdir() if self.incoming.is_dir() else ():
            half.unlink(missing_ok=True)
        return 0

    def _has(self, connection: sa.Connection, file_id: str) -> bool:
        query = sa.select(PIECES.c.number).where(PIECES.c.file == file_id).limit(1)
        return connection.execute(query).one_or_none() is not None
