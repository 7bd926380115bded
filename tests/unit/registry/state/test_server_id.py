"""The id that marks a server's rows is permanent, and never empty after a crash."""

from pathlib import Path

from registry.storage.files import SERVER_ID, server_id


def test_the_id_is_permanent_and_private(tmp_path: Path) -> None:
    first = server_id(tmp_path)
    assert len(first) == 32
    assert server_id(tmp_path) == first
    assert [file.name for file in tmp_path.iterdir()] == [SERVER_ID]
    assert (tmp_path / SERVER_ID).stat().st_mode & 0o777 == 0o600


def test_an_empty_id_is_replaced(tmp_path: Path) -> None:
    """Two servers without an id would share their rows."""
    (tmp_path / SERVER_ID).touch()
    assert len(server_id(tmp_path)) == 32
