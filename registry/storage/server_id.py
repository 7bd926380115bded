"""Whose rows are whose, where several servers share a database."""

import secrets
from pathlib import Path

FILE = "server-id"
"""In the data directory, which one server has at a time."""


def server_id(data_dir: Path) -> str:
    """Of the server that has this data directory; made at its first use."""
    path = data_dir / FILE
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(16))
    return path.read_text().strip()[:32]
