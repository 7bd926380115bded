"""How teams share a contended model: team weights, and the classes and deadlines of keys."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    op.add_column("teams", sa.Column("weight", sa.Double, nullable=False, server_default="1"))
    op.add_column("api_keys", sa.Column("service_class", sa.String(16)))
    op.add_column("api_keys", sa.Column("ceiling", sa.String(16)))
    op.add_column("api_keys", sa.Column("timeout", sa.Double))
