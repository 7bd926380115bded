"""`roundhouse backup` and `restore`: copy everything that a server must not lose into one folder, and back."""

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.local.keys import Database, DataDir
from runtime.cli.options import AsJson
from runtime.cli.output import emit, note


def backup(
    folder: Annotated[Path, typer.Argument(help="A new folder for the copy.")],
    pepper: Annotated[
        bool, typer.Option("--pepper/--no-pepper", help="Include the secret without which no key works.")
    ] = True,
    files: Annotated[
        bool,
        typer.Option("--files", help="Include uploaded files, batches and stored responses, with the texts in them."),
    ] = False,
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Copy adapters, added and merged models, aliases, pins, teams and keys. The server may be running.

    Not copied: weights from a hub, converted models, recipes outside the data directory; and teams, keys and the ledger
    if they are in a PostgreSQL.

    Example: roundhouse backup /backups/roundhouse-2026-11-23
    """
    from runtime.cli.local.backup import back_up
    from runtime.cli.local.options import settings_of

    settings = settings_of(data_dir=data_dir, database=database)
    result = settings.data_dir
    size = back_up(result, folder.absolute(), pepper, settings.database, files=files)
    if as_json:
        emit({"object": "backup", "data_dir": str(result), "folder": str(folder), "bytes": size})
    else:
        note(f"Copied {result} to {folder}, {size / 2**20:.1f} MiB. Restore it with: roundhouse restore {folder}")
    if settings.fleet is not None or settings.fleet_folder.is_dir():
        note(
            "Names shared by the fleet are in its PostgreSQL, not in this copy. Back that up as well, for example with "
            "pg_dump."
        )


def restore(
    folder: Annotated[Path, typer.Argument(help="A folder that `roundhouse backup` made.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fill an empty data directory from a backup, so that a server can continue from there.

    A backup of an older version is migrated when the server starts.

    Example: roundhouse restore /backups/roundhouse-2026-11-23 --data-dir /var/lib/roundhouse/data
    """
    from runtime.cli.local.backup import restore as fill
    from runtime.cli.local.options import settings_of

    result = settings_of(data_dir=data_dir).data_dir
    fill(folder.absolute(), result.absolute())
    if as_json:
        emit({"object": "restore", "data_dir": str(result), "folder": str(folder)})
    else:
        note(f"Restored {result}. Start the server on it: roundhouse serve --data-dir {result}")
