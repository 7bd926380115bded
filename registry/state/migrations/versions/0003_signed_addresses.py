"""Addresses of adapters lose their query, which may hold a signature. New ones are stored without it."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0003", "0002", "0002"
VERSIONS = sa.table("versions", sa.column("adapter", sa.BigInteger), sa.column("number", sa.BigInteger),
                    sa.column("source", sa.Text))  # fmt: skip


def upgrade() -> None:
    connection, c = op.get_bind(), VERSIONS.c
    rows = connection.execute(sa.select(VERSIONS).where(c.source.like("%://%?%"))).all()
    plain = [
        {"its_adapter": row.adapter, "its_number": row.number, "plain": f"{row.source.partition('?')[0]}?…"}
        for row in rows
    ]
    if plain:  # by key: 40,000 addresses took many minutes by their text, because no index has it
        one = (c.adapter == sa.bindparam("its_adapter")) & (c.number == sa.bindparam("its_number"))
        connection.execute(sa.update(VERSIONS).where(one).values(source=sa.bindparam("plain")), plain)
