"""Import a server's own names into those that a fleet shares: all of them or none.

| a name of the server | in the fleet                                            | result   |
|----------------------|---------------------------------------------------------|----------|
| adapter or router    | was never used                                          | imported |
|                      | exists with the same versions, current one and aliases  | no-op    |
|                      | differs, was deleted, or is the name of something else  | conflict |
| alias of a model     | is not used                                             | imported |
|                      | exists for the same model                               | no-op    |
|                      | exists for another model, or is used for something else | conflict |
| recipe of a model    | has no such version                                     | imported |
|                      | has the same recipe                                     | no-op    |
|                      | has another recipe, or is used for something else       | conflict |

Versions, aliases and the rollback history are imported, too.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa

from registry.errors import Conflict
from registry.state.access import TableAccess, Use
from registry.state.adapters import insert_digest
from registry.state.shared.opening import SharedTables
from registry.state.shared.recipes import SharedRecipe, insert_recipe, read_recipes
from registry.state.tables import ADAPTERS, MODEL_ALIASES, ROUTERS, VersionTables
from registry.storage.database import Database, inserting

Row = Mapping[str, Any]
_KINDS: tuple[tuple[VersionTables, Use, str], ...] = (
    (ADAPTERS, "an adapter's name", "adapter"),
    (ROUTERS, "a router's name", "router"),
)


@dataclass(frozen=True, slots=True)
class _Name:
    """A name with its versions and aliases."""

    head: Row
    versions: tuple[Row, ...]
    stack: tuple[int, ...]
    """Numbers of the versions that were made current, the newest last."""
    aliases: Mapping[str, int]

    @property
    def meaning(self) -> object:
        versions = [(row["number"], row["digest"]) for row in self.versions]
        return versions, self.stack[-1:], dict(self.aliases), self.head.get("shared")


def import_names(source: Database, target: SharedTables, recipes: Iterable[SharedRecipe] = ()) -> list[str]:
    """Import all names of `source`, and recipes from files. Returns descriptions of the new ones.

    Raises Conflict (names_differ) that lists the names with two meanings; then nothing was imported.
    """
    access = TableAccess(target.database, revision=target.revision)
    with source.read() as own, target.database.write() as fleet:
        importing = _Import(access, own, fleet)
        for tables, use, word in _KINDS:
            importing.add_versioned(tables, use, word)
        importing.add_aliases()
        importing.add_recipes(recipes)
        if conflicts := importing.conflicts:
            raise Conflict(
                f"Nothing was imported, because names have two meanings: {'; '.join(conflicts[:20])}"
                f"{'; …' if conflicts[20:] else ''}. Remove or rename these, here or in the fleet.",
                code="names_differ",
            )
        if importing.taken:
            target.revision.advance(fleet)
    return importing.taken


class _Import:
    """An import within the transactions `own` and `fleet`, by the table above."""

    def __init__(self, access: TableAccess, own: sa.Connection, fleet: sa.Connection) -> None:
        self._access, self._own, self._fleet = access, own, fleet
        self.taken, self.conflicts = list[str](), list[str]()

    def add_versioned(self, tables: VersionTables, use: Use, word: str) -> None:
        names, theirs = _names(self._own, tables), _names(self._fleet, tables)
        numbers, given = _numbers(self._own, tables), _numbers(self._fleet, tables)
        for key, name in names.items():
            words = f"{word} {':'.join(key)}"
            if key in theirs:
                if theirs[key].meaning != name.meaning:
                    self.conflicts.append(f"{words}: the fleet has other versions or aliases of it")
            elif key in given:
                text = "the fleet used this name before, and its version numbers cannot be reused"
                self.conflicts.append(f"{words}: {text}")
            else:
                self._insert(words, name.head["name"], use, partial(_insert, self._fleet, tables, name))
        for key, last in numbers.items():
            if key in names or key not in given:
                _set_last(self._fleet, tables, key, max(last, given.get(key, 0)))

    def add_aliases(self) -> None:
        theirs = _aliases(self._fleet)
        for alias, model in _aliases(self._own).items():
            words = f"alias {alias} of model {model}"
            if alias not in theirs:
                row = sa.insert(MODEL_ALIASES).values(alias=alias, model=model)
                self._insert(words, alias, "a model's alias", partial(self._fleet.execute, row))
            elif theirs[alias] != model:
                self.conflicts.append(f"{words}: in the fleet it means {theirs[alias]}")

    def add_recipes(self, recipes: Iterable[SharedRecipe]) -> None:
        digests = {(recipe.model, recipe.version): recipe.digest for recipe in read_recipes(self._fleet)}
        for recipe in recipes:
            words, theirs = f"recipe {recipe.model}@{recipe.version}", digests.get((recipe.model, recipe.version))
            if theirs is None:
                insert = partial(insert_recipe, self._fleet, recipe, time.time())
                self._insert(words, recipe.model, "a model's id", insert)
            elif theirs != recipe.digest:
                self.conflicts.append(f"{words}: the fleet has another one")

    def _insert(self, words: str, name: str, use: Use, insert: Callable[[], object]) -> None:
        """Insert a name, unless it is used for something else."""
        try:
            self._access.check_free(self._fleet, name, use)
        except Conflict as error:
            self.conflicts.append(f"{words}: {error.message}")
        else:
            insert()
            self.taken.append(words)


def _names(db: sa.Connection, tables: VersionTables) -> dict[tuple[str, ...], _Name]:
    heads = [row._asdict() for row in db.execute(sa.select(tables.heads))]
    keys = {head["id"]: tuple(head[name] for name in tables.key_names) for head in heads}
    versions: dict[int, list[Row]] = {id_: [] for id_ in keys}
    for row in _rows(db, sa.select(tables.versions).order_by(tables.versions.c.number), tables.versions):
        versions[row["owner"]].append(row)
    stacks: dict[int, list[int]] = {id_: [] for id_ in keys}
    for row in _rows(db, sa.select(tables.currents).order_by(tables.currents.c.seq), tables.currents):
        stacks[row["owner"]].append(row["number"])
    aliases: dict[int, dict[str, int]] = {id_: {} for id_ in keys}
    for row in _rows(db, sa.select(tables.aliases), tables.aliases):
        aliases[row["owner"]][row["alias"]] = row["number"]
    return {
        keys[head["id"]]: _Name(head, tuple(versions[head["id"]]), tuple(stacks[head["id"]]), aliases[head["id"]])
        for head in heads
    }


def _rows(db: sa.Connection, query: sa.Select[Any], table: sa.Table) -> Iterator[Row]:
    """Yield rows by the columns' keys, because `owner` has other names in the database."""
    keys = table.columns.keys()
    return (dict(zip(keys, row, strict=True)) for row in db.execute(query))


def _numbers(db: sa.Connection, tables: VersionTables) -> dict[tuple[str, ...], int]:
    names = tables.key_names
    rows = (row._asdict() for row in db.execute(sa.select(tables.numbers)))
    return {tuple(row[name] for name in names): row["last"] for row in rows}


def _aliases(db: sa.Connection) -> dict[str, str]:
    return {row.alias: row.model for row in db.execute(sa.select(MODEL_ALIASES))}


def _insert(db: sa.Connection, tables: VersionTables, name: _Name) -> None:
    head = {column: value for column, value in name.head.items() if column != "id"}
    owner = db.execute(sa.insert(tables.heads).values(**head).returning(tables.heads.c.id)).scalar_one()
    for row in name.versions:
        if tables is ADAPTERS:
            insert_digest(db, row["digest"], row["bytes"])
        db.execute(sa.insert(tables.versions).values(**{**row, "owner": owner}))
    for number in name.stack:
        db.execute(sa.insert(tables.currents).values(owner=owner, number=number))
    for alias, number in name.aliases.items():
        db.execute(sa.insert(tables.aliases).values(owner=owner, alias=alias, number=number))


def _set_last(db: sa.Connection, tables: VersionTables, key: tuple[str, ...], last: int) -> None:
    names = tables.key_names
    insert = inserting(db, tables.numbers).values(**dict(zip(names, key, strict=True)), last=last)
    db.execute(insert.on_conflict_do_update(index_elements=names, set_={"last": last}))
