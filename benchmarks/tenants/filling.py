"""A ledger as a server has it after a month, made by the database itself."""

from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sa

from tenants.ledger.rows import COUNTS
from tenants.ledger.table import SUMS
from tenants.storage.opening import open_tables
from tenants.storage.tables import HOURS

STEP = 500_000
"""Rows of one statement."""
ALIKE = {
    "uid": "printf('%032x', n)", "request": "'req-' || n", "attempt": "1", "server": "'bench'", "state": "'settled'",
    "endpoint": "'/v1/chat/completions'", "service_class": "'interactive'", "source": "'api'", "end": "'done'",
    "status": "200", **dict.fromkeys(COUNTS, "n % 997"),
}  # fmt: skip


def fill(folder: Path, rows: int, given: Mapping[str, str]) -> None:
    """Add as many rows, and the sums of their hours as the server keeps them.

    Args:
        given: by column, each row's value in SQL, where it is not `ALIKE` or numbers: of its number `n`, from 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    columns = {**ALIKE, **given}
    into, values = ", ".join(f'"{name}"' for name in columns), ", ".join(columns.values())
    of_hour = [column.name for column in HOURS.primary_key]
    sums = {name: f"SUM({name})" if name in COUNTS else "0" for name in SUMS}
    sums |= {"requests": "COUNT(*)", "accepted": "COUNT(*)"}
    tables = open_tables(folder, None)
    with tables.write() as connection:
        for first in range(0, rows, STEP):
            connection.execute(
                sa.text(
                    f"WITH RECURSIVE many(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM many "
                    f"WHERE n + 1 < {min(rows, first + STEP)}) "
                    f"INSERT INTO ledger ({into}) SELECT {values} FROM many"
                )
            )
        connection.execute(
            sa.text(
                f"INSERT INTO hours ({', '.join((*of_hour, *sums))}) SELECT {', '.join((*of_hour, *sums.values()))} "
                f"FROM ledger GROUP BY {', '.join(of_hour)}"
            )
        )
    tables.close()
