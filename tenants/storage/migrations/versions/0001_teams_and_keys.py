"""Teams with their keys, and the row with the revision. Creates team `default`."""

import time

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade() -> None:
    teams = op.create_table(
        "teams",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("archived", sa.Double),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(8), primary_key=True),
        sa.Column("team", sa.String(64), sa.ForeignKey("teams.id"), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("models", sa.JSON, nullable=False),
        sa.Column("adapters", sa.JSON, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double),
        sa.Column("revoked", sa.Double),
        sa.Column("replaces", sa.String(8)),
    )
    op.create_index("ix_api_keys_team", "api_keys", ["team"])
    keyring = op.create_table(
        "keyring",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("pepper", sa.LargeBinary),
    )
    op.bulk_insert(teams, [{"id": "default", "name": "default", "created": time.time()}])
    op.bulk_insert(keyring, [{"id": 1, "revision": 0}])
