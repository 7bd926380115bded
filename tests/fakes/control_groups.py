"""Folders in place of a machine's control groups."""

from pathlib import Path


def make_groups(root: Path, *names: str) -> list[Path]:
    """Make these folders below `root`, and return them."""
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
    return [root / name for name in names]
