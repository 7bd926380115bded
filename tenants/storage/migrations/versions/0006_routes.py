"""The model name that a request sent, and the router that chose for it."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0006", "0004"


def upgrade() -> None:
    for name, length in (("asked", 128), ("router", 96), ("target", 208), ("reason", 128)):
        op.add_column("ledger", sa.Column(name, sa.String(length), nullable=False, server_default=""))
    op.add_column("ledger", sa.Column("score", sa.Double))
    routed = sa.text("router <> ''")
    op.create_index("ix_ledger_router", "ledger", ["router", "at"], sqlite_where=routed, postgresql_where=routed)
