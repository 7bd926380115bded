"""Whose rows are whose: an id that stays, and that no crash leaves empty."""

from pathlib import Path

from registry.storage.files import FILE, server_id


def test_it_stays(tmp_path: Path) -> None:
    first = server_id(tmp_path)
    assert len(first) == 32
    assert server_id(tmp_path) == first
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_an_empty_one_is_made_anew(tmp_path: Path) -> None:
    """Two servers without one would have the same rows."""
    (tmp_path / FILE).touch()
    assert len(server_id(tmp_path)) == 32
