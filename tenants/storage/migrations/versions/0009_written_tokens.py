"""The surcharge for prompt tokens that are written into a cache."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0009", "0008"


def upgrade() -> None:
    op.add_column("prices", sa.Column("written", sa.BigInteger, nullable=False, server_default="0"))
