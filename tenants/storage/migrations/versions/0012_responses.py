"""Stored responses, and the hours for which a team stores them."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0012", "0011"


def upgrade() -> None:
    op.add_column("teams", sa.Column("response_hours", sa.Integer, nullable=False, server_default="0"))
    op.create_table(
        "responses",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("team", sa.String(64), sa.ForeignKey("teams.id"), nullable=False),
        sa.Column("server", sa.String(32), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False, index=True),
        sa.Column("running", sa.Boolean, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_responses_team", "responses", ["team", "created", "bytes"])
