"""Tables that only a fleet's schema has, in addition to those of `registry.state.tables`.

| table    | a row is                                                      |
|----------|---------------------------------------------------------------|
| revision | one row: the number of the last change                        |
| recipes  | one version of the recipe of a model that was added or edited |
"""

import sqlalchemy as sa

METADATA = sa.MetaData()
VERSION_TABLE = "shared_version"
REVISION = sa.Table("revision", METADATA, sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False))
RECIPES = sa.Table(
    "recipes",
    METADATA,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)
