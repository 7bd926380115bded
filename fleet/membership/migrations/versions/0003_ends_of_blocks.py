"""The end of a block's window."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    op.add_column("blocks", sa.Column("ends", sa.BigInteger, nullable=False, server_default="0"))
