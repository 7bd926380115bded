"""Settings of teams and keys. Imports no database."""

from dataclasses import dataclass
from pathlib import Path

FILE = "tenants.db"
"""Beside the registry's state.db, not in it: writes of each request must not delay a registration."""


@dataclass(frozen=True, slots=True)
class KeySettings:
    """The database of keys, and callers that need none.

    Attributes:
        database: a URL; None: SQLite in the data directory, once a key was made.
        pepper: None: the file in the data directory.
        loopback: only this machine can reach the server.
        open: accept requests without a key; where there are keys, for inference only.
        sign_in: people sign in at a provider, so that nobody without a key or session is an administrator.
        in_fleet: other servers change the keys, too: a database at an older state is refused.
    """

    data_dir: Path
    database: str | None = None
    pepper: str | None = None
    loopback: bool = True
    open: bool = False
    sign_in: bool = False
    in_fleet: bool = False

    def has_tables(self) -> bool:
        """Whether a team, a key or a database exists. Imports no database."""
        if self.database is not None:
            return True
        try:  # zero bytes: the disk was full when the file was created; any content means tables
            return (self.data_dir / FILE).stat().st_size > 0
        except FileNotFoundError:
            return False
