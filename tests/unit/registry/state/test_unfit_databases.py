"""Databases on PostgreSQL that cannot be used, or only with care."""

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from registry.errors import BadRequest, Conflict, Unavailable
from registry.storage import postgres
from registry.storage.database import Database, driver_message, url_of
from tenants.keys.records import KeyRequest
from tenants.keys.table import KeyTable
from tenants.storage.opening import open_tables

NAME = "N\xe4me \U0001f600"
WITH = "ENCODING '{}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"


def create(postgres_url: str, name: str, encoding: str) -> str:
    engine = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.schema.DDL(f'CREATE DATABASE "{name}" {WITH.format(encoding)}'.replace("%", "%%")))
    engine.dispose()
    return url_of(postgres_url).set(database=name).render_as_string(hide_password=False)


def test_a_database_without_an_encoding_stores_every_text(tmp_path: Path, postgres_url: str) -> None:
    """`initdb` makes such databases if no locale is set. The driver would return bytes."""
    with closing(open_tables(tmp_path, create(postgres_url, "odd/%?@: name", "SQL_ASCII"))) as database:
        table = KeyTable(database, b"p" * 64)
        table.create(KeyRequest("default", NAME))
        assert table.list_keys()[0].name == NAME


def test_a_database_that_cannot_store_every_text_is_refused(tmp_path: Path, postgres_url: str) -> None:
    with pytest.raises(Conflict, match="LATIN1"):
        open_tables(tmp_path, create(postgres_url, "latin", "LATIN1"))


def test_a_pool_that_drops_the_options_of_connections_is_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PgBouncer with `ignore_startup_parameters = options`: all servers would use the schema public."""
    real = postgres.options
    monkeypatch.setattr(postgres, "options", lambda *given: {**real(*given), "options": ""})
    with closing(Database(url_of(postgres_url), schema="roundhouse_x")) as database, pytest.raises(Conflict) as caught:
        database.make_schema()
    assert "PgBouncer" in caught.value.message
    assert caught.value.code == "unfit_database"


def test_missing_rights_are_named(tmp_path: Path, postgres_url: str) -> None:
    with closing(Database(url_of(postgres_url))) as server, server.write() as connection:
        connection.execute(sa.text("CREATE ROLE rightless LOGIN"))
    with pytest.raises(Conflict, match="ALL on its schema public"):
        open_tables(tmp_path, postgres_url.replace("tests@", "rightless@"))


@pytest.mark.parametrize(
    ("change", "words"), [({"database": "nope"}, 'database "nope" does not exist'), ({"username": "no"}, 'role "no"')]
)
def test_the_words_of_a_refused_connection_are_for_the_operator(
    tmp_path: Path, postgres_url: str, change: dict[str, str], words: str
) -> None:
    with pytest.raises(Unavailable) as caught:
        open_tables(tmp_path, url_of(postgres_url).set(**change).render_as_string())  # type: ignore[arg-type]
    assert words in driver_message(caught.value)
    assert words not in caught.value.message


def test_an_unknown_option_of_an_address_is_named(tmp_path: Path, postgres_url: str) -> None:
    with pytest.raises(BadRequest, match="ssl_mode"):
        open_tables(tmp_path, f"{postgres_url}&ssl_mode=require")
