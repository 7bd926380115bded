"""Whose rows are whose, where several servers share a database."""

import os
import secrets
import tempfile
from pathlib import Path

FILE = "server-id"
"""In the data directory, which one server has at a time."""


def server_id(data_dir: Path) -> str:
    """Return the id of this data directory's server, made at first use."""
    path = data_dir / FILE
    if not path.exists() or not path.stat().st_size:  # a crash may have left an empty one
        handle, half = tempfile.mkstemp(prefix=f".{FILE}-", dir=data_dir)
        with open(handle, "w") as file:
            file.write(secrets.token_hex(16))
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    return path.read_text().strip()[:32]
