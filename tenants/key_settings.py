"""Settings of teams and keys. Imports no database."""

from dataclasses import dataclass
from pathlib import Path

from registry.errors import Conflict

FILE = "tenants.db"
"""Separate from the registry's state.db, so that writing each request does not delay a registration."""
HAD_KEYS = "had-keys"
"""A file in the data directory of a server that has, or had, keys."""


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

    @property
    def opens_without_keys(self) -> bool:
        """Whether everyone is an administrator while there is no key."""
        return (self.loopback or self.open) and not self.sign_in

    def lost_keys_error(self) -> Conflict | None:
        """Return the error for a server that had keys and would now be open, because there are none."""
        mark = self.data_dir / HAD_KEYS
        if not self.opens_without_keys or not mark.is_file():
            return None
        place = self.data_dir / FILE if self.database is None else "its database"
        return Conflict(
            f"This server had keys, but there are none in {place}: it would accept everybody. Restore a backup "
            "(roundhouse restore), name the database that has the keys (--database), or make a key (roundhouse keys "
            f"create). To begin without keys, delete {mark}.",
            code="keys_lost",
        )

    def has_tables(self) -> bool:
        """Whether a team, a key or a database exists. Imports no database."""
        if self.database is not None:
            return True
        try:  # zero bytes: the disk was full when the file was created; any content means tables
            return (self.data_dir / FILE).stat().st_size > 0
        except FileNotFoundError:
            return False
