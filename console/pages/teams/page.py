"""Teams and their keys. What a key is, is shown once, when it is made."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from console.host import Context, Page, Visit
from registry.errors import BadRequest
from tenants.caller import EVERY, SCOPES, Scope

if TYPE_CHECKING:  # a server without keys loads no database
    from tenants.keys.table import KeyTable

T = TypeVar("T")


async def context(visit: Visit) -> Context:
    found: dict[str, object] = {"teams": [], "keys": [], "now": time.time(), "all_scopes": sorted(SCOPES)}
    if not visit.host.place.has_tables():
        return found
    teams, keys = await _tables(visit, lambda tables: (tables.list_teams(), tables.list_keys()))
    return found | {"teams": teams, "keys": sorted(keys, key=lambda key: key.created, reverse=True)}


async def team(visit: Visit, body: Mapping[str, object]) -> Context:
    """Make a team."""
    id_, name = _text(body, "id"), _text(body, "name", "")
    made = await _tables(visit, lambda tables: tables.create_team(id_, name))
    return {"id": made.id}


async def key(visit: Visit, body: Mapping[str, object]) -> Context:
    """Make a key; its text is in this answer and nowhere else."""
    from tenants.keys.records import Wanted

    words = body.get("scopes")
    if not isinstance(words, list) or not words or not all(word in set(SCOPES) for word in words):
        raise BadRequest(f"Scopes are {', '.join(sorted(SCOPES))}.", param="scopes")
    models = tuple(_text(body, "models", "*").replace(",", " ").split()) or EVERY
    days = body.get("days")
    if days is not None and not (isinstance(days, int) and 0 < days <= 3650):
        raise BadRequest("A key expires after 1 to 3650 days, or never.", param="days")
    wanted = Wanted(
        _text(body, "team"), _text(body, "name", ""), frozenset(map(Scope, words)), models,
        seconds=None if days is None else days * 86_400.0,
    )  # fmt: skip
    made, text = await _tables(visit, lambda tables: tables.create(wanted))
    return {"id": made.id, "team": made.team, "value": text}


async def revoke(visit: Visit, body: Mapping[str, object]) -> Context:
    id_ = _text(body, "id")
    revoked = await _tables(visit, lambda tables: tables.revoke(id_))
    return {"id": revoked.id, "revoked": revoked.revoked}


async def rotate(visit: Visit, body: Mapping[str, object]) -> Context:
    """A successor; the old key goes on for a day."""
    id_ = _text(body, "id")
    made, text = await _tables(visit, lambda tables: tables.rotate(id_, 86_400.0))
    return {"id": made.id, "team": made.team, "value": text}


def _text(body: Mapping[str, object], name: str, otherwise: str | None = None) -> str:
    value = body.get(name, otherwise)
    if not isinstance(value, str) or len(value) > 4096:
        raise BadRequest(f"Send `{name}` as a text.", param=name)
    return value.strip()


async def _tables(visit: Visit, use: "Callable[[KeyTable], T]") -> T:
    place = visit.host.place

    def used() -> T:
        from tenants.keys import pepper
        from tenants.keys.table import KeyTable
        from tenants.storage.opening import open_tables

        with closing(open_tables(place.data_dir, place.database)) as database:
            return use(KeyTable(database, pepper.load(place.data_dir, place.pepper)))

    return await asyncio.to_thread(used)


ACTIONS = {"team": team, "key": key, "revoke": revoke, "rotate": rotate}
PAGE = Page("Teams", 70, frozenset((Scope.ADMIN,)), context, frozenset(("rows", "list")), ACTIONS)
