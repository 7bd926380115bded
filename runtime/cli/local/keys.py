"""Teams and keys of a data directory. A running server follows within a second."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.failures import Failure, RefusedError, ServerError, UsageError
from runtime.cli.output import note

if TYPE_CHECKING:
    from registry.storage.database import Database as Tables
    from tenants.key_settings import KeySettings
    from tenants.keys.table import KeyTable
    from tenants.limits.table import LimitTable

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="ROUNDHOUSE_DATA_DIR",
        help="Data directory of the server.",
        show_default="as for serve",
        rich_help_panel="Where",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="ROUNDHOUSE_DATABASE",
        help="Database of teams and keys.",
        show_default="SQLite in the data directory",
        rich_help_panel="Where",
    ),
]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


@contextmanager
def open_keys(data_dir: Path | None, database: str | None, *, make: bool = False) -> Iterator["KeyTable"]:
    """Open teams and keys; with `make`, create the tables if missing. Errors end the command."""
    with _map_errors(), _tables(data_dir, database, make) as (place, tables):
        yield _keys(place, tables)


@contextmanager
def open_keys_at(place: "KeySettings") -> Iterator["KeyTable"]:
    """Open the teams and keys of these settings."""
    from tenants.storage.opening import open_tables

    with _map_errors(), closing(open_tables(place.data_dir, place.database)) as tables:
        yield _keys(place, tables)


@contextmanager
def open_keys_and_limits(
    data_dir: Path | None, database: str | None, *, make: bool
) -> Iterator[tuple["KeyTable", "LimitTable"]]:
    """Open teams, keys and limits; temporary empty tables if there are none."""
    from tenants.limits.table import LimitTable

    with _map_errors(), ExitStack() as stack:
        if make or _place(data_dir, database).has_tables():
            place, tables = stack.enter_context(_tables(data_dir, database, make))
        else:
            from tenants.key_settings import KeySettings
            from tenants.storage.opening import open_tables

            place = KeySettings(Path(stack.enter_context(TemporaryDirectory(prefix="roundhouse-"))))
            tables = stack.enter_context(closing(open_tables(place.data_dir)))
        yield _keys(place, tables), LimitTable(tables)


@contextmanager
def open_database(data_dir: Path | None, database: str | None) -> Iterator["Tables"]:
    """Open the database of teams. Errors end the command."""
    with _map_errors(), _tables(data_dir, database, False) as (_, tables):
        yield tables


@contextmanager
def _tables(data_dir: Path | None, database: str | None, make: bool) -> Iterator[tuple["KeySettings", "Tables"]]:
    from tenants.storage.opening import open_tables

    place = _place(data_dir, database)
    if place.has_tables():
        with closing(open_tables(place.data_dir, place.database)) as tables:
            yield place, tables
    elif make:
        with _new(place) as made:
            yield made
    else:
        raise RefusedError(
            f"There are no teams, keys or usage in {place.data_dir}, because no server has run on it and no key was "
            "created. See --data-dir, and roundhouse keys create --help."
        )
    if make and place.database is None:
        from runtime.cli.local.data_dir import was_served

        if not was_served(place.data_dir):
            note(
                f"Stored in {place.data_dir.absolute()}, but no server has been started on that data directory yet. "
                "Servers with another data directory do not use it. See --data-dir."
            )


@contextmanager
def _new(place: "KeySettings") -> Iterator[tuple["KeySettings", "Tables"]]:
    """Create the first tables elsewhere, and move them once the command has succeeded.

    A server starts a ledger as soon as it finds tables, so it must not find tables of a failed command.
    """
    from dataclasses import replace

    from registry.storage.files import make_private
    from registry.storage.migration import alone
    from runtime.cli.local.backup import PEPPER, copy_database, copy_private
    from tenants.key_settings import FILE
    from tenants.storage.opening import open_tables

    with TemporaryDirectory(prefix="roundhouse-") as folder:
        aside = replace(place, data_dir=Path(folder))
        copy_private(place.data_dir / PEPPER, aside.data_dir / PEPPER)
        with closing(open_tables(aside.data_dir)) as tables:
            yield aside, tables
        make_private(place.data_dir)
        with alone(place.data_dir):
            if place.has_tables():
                raise RefusedError("Someone else has just created the first team or key here. Try again.")
            copy_private(aside.data_dir / PEPPER, place.data_dir / PEPPER)
            copy_database(aside.data_dir / FILE, place.data_dir / FILE)


def _place(data_dir: Path | None, database: str | None) -> "KeySettings":
    from runtime.cli.local.options import settings_of

    return settings_of(data_dir=data_dir, database=database).keys


def _keys(place: "KeySettings", tables: "Tables") -> "KeyTable":
    from tenants.keys import secret
    from tenants.keys.table import KeyTable

    return KeyTable(tables, secret.load_pepper(place.data_dir, place.pepper))


@contextmanager
def _map_errors() -> Iterator[None]:
    """Convert the product's errors to failures of the command line."""
    from registry.errors import RoundhouseError, Unavailable

    try:
        yield
    except RoundhouseError as error:
        from registry.storage.database import driver_message

        kind: type[Failure] = RefusedError if error.status < 500 else ServerError
        why = driver_message(error) if isinstance(error, Unavailable) else ""
        raise kind(f"{error.message} {why}".rstrip(), code=error.code) from None
    except PermissionError as error:
        raise RefusedError(f"You may not read {error.filename}. Run this command as the server's user.") from None


def seconds(text: str, option: str) -> float:
    """Parse a duration such as '90d', '12h', '30m', '45s' or '2w'. Raises UsageError."""
    result = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if result is None:
        raise UsageError(f"{option} must be a time such as 90d, 12h, 30m or 45s, not '{text}'.")
    return float(int(result[1]) * _UNITS[result[2]])
