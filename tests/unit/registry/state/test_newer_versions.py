"""Tables of a newer version are used if it only added to them, and otherwise refused."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from registry.errors import Conflict
from registry.records import AdapterKey, NewVersion
from registry.state.database import MIGRATIONS, State, open_state
from registry.state.tables import VERSION_TABLE
from registry.storage.database import Database
from registry.storage.migration import newest, revision, upgrade
from tests.unit.registry.makers import digest

FUTURE = '''"""What a later version adds."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "{revision}", "{before}"
{least}


def upgrade() -> None:
    op.add_column("adapters", sa.Column("colour_{revision}", sa.Text, nullable=False, server_default="none"))
'''
OWN = newest(MIGRATIONS)
NEXT, AFTER = (f"{int(OWN) + step:04}" for step in (1, 2))


@pytest.fixture
def database(url: str | None, tmp_path: Path) -> Iterator[Database]:
    with closing(open_state(tmp_path / "data", url)) as database:
        yield database


def later(folder: Path, *steps: tuple[str, str, str | None]) -> Path:
    """Return the migrations of a later version. Each step has a revision, the one before it, and its `least`."""
    scripts = folder / "later"
    shutil.copytree(MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, least in steps:
        line = "" if least is None else f'least = "{least}"'
        text = FUTURE.format(revision=name, before=before, least=line)
        (scripts / "versions" / f"{name}_later.py").write_text(text)
    return scripts


def test_tables_with_additions_are_used_and_kept(database: Database, url: str | None, tmp_path: Path) -> None:
    upgrade(database, later(tmp_path, (NEXT, OWN, OWN), (AFTER, NEXT, OWN)), VERSION_TABLE)
    with State(tmp_path / "data", url=url) as state:  # the older version
        state.adapters.register(AdapterKey("base", "tune"), NewVersion(digest(1), 8, 100, "test"))
    with State(tmp_path / "data", url=url, read_only=True) as state:
        assert [adapter.key.name for adapter in state.adapters.all()] == ["tune"]
    assert revision(database, VERSION_TABLE) == AFTER
    with database.read() as connection:
        assert connection.execute(sa.text(f"SELECT colour_{AFTER} FROM adapters")).scalars().all() == ["none"]


@pytest.mark.parametrize(
    "steps",
    [((NEXT, OWN, None),), ((NEXT, OWN, OWN), (AFTER, NEXT, None)), ((NEXT, OWN, None), (AFTER, NEXT, OWN))],
    ids=["changed", "added to, then changed", "changed, then added to"],
)
def test_changed_tables_are_refused(tmp_path: Path, steps: tuple[tuple[str, str, str | None], ...]) -> None:
    with closing(open_state(tmp_path / "data")) as database:
        upgrade(database, later(tmp_path, *steps), VERSION_TABLE)
    for read_only in (False, True):
        with pytest.raises(Conflict, match="written by a newer Roundhouse"):
            State(tmp_path / "data", read_only=read_only)
