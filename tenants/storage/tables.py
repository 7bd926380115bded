"""Tables as they are now. Times are seconds since the epoch.

| table    | a row is                                                                                          |
|----------|---------------------------------------------------------------------------------------------------|
| teams    | a team; archived: its keys are refused. Never deleted: what it used stays told                     |
| api_keys | a key, by its HMAC; revoked or expired ones stay, so that an emptied table never means 'open'       |
| keyring  | one row: `revision` grows with each change, so that every gateway notices; `pepper` tells whose it is |
"""

import sqlalchemy as sa

METADATA = sa.MetaData()
VERSION_TABLE = "tenants_version"

TEAMS = sa.Table(
    "teams",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("archived", sa.Double),
)
KEYS = sa.Table(
    "api_keys",
    METADATA,
    sa.Column("id", sa.String(8), primary_key=True),
    sa.Column("team", sa.String(64), sa.ForeignKey("teams.id"), nullable=False, index=True),
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
KEYRING = sa.Table(
    "keyring",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("pepper", sa.LargeBinary),
)
