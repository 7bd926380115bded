"""Which server validates a batch, so that another one can take over."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    op.add_column("batches", sa.Column("validator", sa.String(32), nullable=False, server_default=""))
