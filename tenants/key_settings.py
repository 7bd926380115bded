"""Settings of teams and keys. Imports no database."""

from dataclasses import dataclass
from pathlib import Path

FILE = "tenants.db"
"""Separate from the registry's state.db, so that writing each request does not delay a registration."""


@dataclass(frozen=True, slots=True)
class KeySettings:
    """Where the keys are stored, and which requests need none.

    Attributes:
        database: a URL. None for SQLite in the data directory, created with the first key.
        pepper: None to use the file in the data directory.
        loopback: only this machine can reach the server.
        open: accept requests without a key; once there are keys, for inference only.
        sign_in: people sign in at a provider, so no one without a key or session is an administrator.
        in_fleet: other servers change the keys, too. A database that was reset to an older state is refused.
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
