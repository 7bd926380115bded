"""Where teams and keys are kept, as the settings say it. Imports no database."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where keys are kept, and what holds without them.

    Attributes:
        database: a URL; None: SQLite in the data directory, once somebody has made a key.
        pepper: None: the file in the data directory.
        loopback: only this machine can reach the server.
        open: whoever shows no key is let in.
    """

    data_dir: Path
    database: str | None = None
    pepper: str | None = None
    loopback: bool = True
    open: bool = False
