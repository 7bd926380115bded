"""Where teams and keys are kept, as the settings say it. Imports no database."""

from dataclasses import dataclass
from pathlib import Path

FILE = "tenants.db"
"""Beside the registry's state.db, not in it: what is written at each request must not keep a registration waiting."""


@dataclass(frozen=True, slots=True)
class KeySettings:
    """Where keys are kept, and what holds without them.

    Attributes:
        database: a URL; None: SQLite in the data directory, once somebody has made a key.
        pepper: None: the file in the data directory.
        loopback: only this machine can reach the server.
        open: whoever shows no key is let in; where there are keys, to ask models only.
    """

    data_dir: Path
    database: str | None = None
    pepper: str | None = None
    loopback: bool = True
    open: bool = False

    def has_tables(self) -> bool:
        """Has somebody made a team or a key, or is there a database to ask? Imports none."""
        if self.database is not None:
            return True
        try:  # of no bytes: a disk that was full when somebody began; whatever is in one has bytes, also beside its log
            return (self.data_dir / FILE).stat().st_size > 0
        except FileNotFoundError:
            return False
