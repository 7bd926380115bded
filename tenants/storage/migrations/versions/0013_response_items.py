"""The items of stored answers, by a digest of the id that later requests name."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0013", "0012"
least = "0012"
"""Earlier code writes no items, so it finds none. When it deletes a response, the items are deleted, too."""


def upgrade() -> None:
    response = sa.ForeignKey("responses.id", ondelete="CASCADE")
    op.create_table(
        "response_items",
        sa.Column("response", sa.String(64), response, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, index=True),
        sa.Column("item", sa.LargeBinary, nullable=False),
    )
