"""The tables of a fleet.

| table      | a row is                                                                |
|------------|-------------------------------------------------------------------------|
| members    | a current or former server of the fleet, with the end of its lease      |
| renewals   | one row: the number of lease renewals; a lower one shows an older state |
| blocks     | a limit in one window, and how much of it servers have taken            |
| grants     | how much of a budget one server has taken in one window                 |
| at_once    | how many requests at once one server may run under a limit              |
| sessions   | a signed-in browser                                                     |
| desired    | the newest epoch: nodes by model                                        |
| placements | a model that was placed by hand                                         |
"""

import sqlalchemy as sa

METADATA = sa.MetaData()
VERSION_TABLE = "fleet_version"

MEMBERS = sa.Table(
    "members",
    METADATA,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("boot", sa.BigInteger, nullable=False),
    sa.Column("server", sa.String(64), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("address", sa.String(512), nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
    sa.Column("draining", sa.Boolean, nullable=False, server_default=sa.false()),
)
BLOCKS = sa.Table(
    "blocks",
    METADATA,
    sa.Column("limit_id", sa.String(64), primary_key=True),
    sa.Column("window", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("capacity", sa.BigInteger, nullable=False),
    sa.Column("granted", sa.BigInteger, nullable=False),
    sa.Column("taken", sa.BigInteger, nullable=False),
    sa.Column("ends", sa.BigInteger, nullable=False, server_default="0"),
)
"""window, ends: start and end of the window, in seconds since the epoch. taken: by the last statement, which returns
it."""
GRANTS = sa.Table(
    "grants",
    METADATA,
    sa.Column("limit_id", sa.String(64), primary_key=True),
    sa.Column("window", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("server", sa.String(64), primary_key=True),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("ends", sa.BigInteger, nullable=False),
)
"""server: id of a data directory, over all its runs. amount: net of what it gave back."""
AT_ONCE = sa.Table(
    "at_once",
    METADATA,
    sa.Column("limit_id", sa.String(64), primary_key=True),
    sa.Column("server", sa.String(64), primary_key=True),
    sa.Column("amount", sa.BigInteger, nullable=False),
)
"""server: id of a data directory. Rows of a dead server are removed."""
RENEWALS = sa.Table(
    "renewals",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("count", sa.BigInteger, nullable=False),
)
SESSIONS = sa.Table(
    "sessions",
    METADATA,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("credential", sa.Text, nullable=False),
    sa.Column("ends", sa.DateTime(timezone=True), nullable=False),
)
"""digest: of the token in the cookie. owner: id of a key or person."""
DESIRED = sa.Table(
    "desired",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("replicas", sa.JSON, nullable=False),
)
PLACEMENTS = sa.Table(
    "placements",
    METADATA,
    sa.Column("model", sa.String(200), primary_key=True),
    sa.Column("replicas", sa.Integer),
    sa.Column("nodes", sa.JSON, nullable=False),
)
