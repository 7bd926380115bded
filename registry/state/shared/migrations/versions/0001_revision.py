"""The number of the last change."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade() -> None:
    made = op.create_table("revision", sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False))
    op.bulk_insert(made, [{"number": 1}])
