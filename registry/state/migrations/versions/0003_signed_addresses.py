"""Addresses of adapters lose their query, which may hold a signature. New ones are stored without it."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0003", "0002", "0002"
VERSIONS = sa.table("versions", sa.column("source", sa.Text))


def upgrade() -> None:
    connection, source = op.get_bind(), VERSIONS.c.source
    addresses = sa.select(source).where(source.like("%://%?%")).distinct()
    for address in connection.execute(addresses).scalars().all():
        plain = f"{address.partition('?')[0]}?…"
        connection.execute(sa.update(VERSIONS).where(source == address).values(source=plain))
