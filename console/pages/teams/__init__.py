"""Teams, keys and limits.

A key is shown once, when it is created. A limit can be simulated on the ledger before it is set.
"""

import time
from collections.abc import Iterable, Mapping

from console.host import Context, Page, Visit
from registry.errors import BadRequest
from tenants.caller import SCOPES, Scope
from tenants.keys.records import Key, KeyRequest
from tenants.limits import simulate as simulation
from tenants.limits.records import Kind, Limit, Mode, amount_of
from tenants.watch import Tables

MOST_GONE = 200
"""Most revoked and expired keys in the table, the newest ones. None is ever deleted."""


async def context(visit: Visit) -> Context:
    now = time.time()
    values: dict[str, object] = {
        "teams": [],
        "keys": [],
        "more": 0,
        "limits": [],
        "now": now,
        "all_scopes": sorted(SCOPES),
    }
    values |= {"kinds": list(Kind), "modes": list(Mode), "whole": 1.0, "shares": visit.host.console.history.shares()}
    if not visit.host.has_tables:
        return values
    teams, (keys, more), limits = await visit.host.tables(
        lambda tables: (tables.keys.list_teams(), _newest(tables.keys.list_keys(), now), tables.limits.all())
    )
    whole = sum(team.weight for team in teams if not team.archived) or 1.0
    return values | {"teams": teams, "keys": keys, "more": more, "limits": limits, "whole": whole}


def _newest(keys: Iterable[Key], now: float) -> tuple[list[Key], int]:
    """Return the keys for the table, newest first, and how many are left out."""
    visible, gone = [], 0
    for key in sorted(keys, key=lambda key: key.created, reverse=True):
        gone += (is_gone := key.state(now) != "active")
        if not is_gone or gone <= MOST_GONE:
            visible.append(key)
    return visible, max(0, gone - MOST_GONE)


async def team(visit: Visit, body: Mapping[str, object]) -> Context:
    """Create a team."""
    id_, name = _text(body, "id"), _text(body, "name", "")
    created = await visit.host.tables(lambda tables: tables.keys.create_team(id_, name))
    return {"id": created.id}


async def key(visit: Visit, body: Mapping[str, object]) -> Context:
    """Create a key. Only this answer contains its text."""
    words = body.get("scopes")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word in SCOPES for word in words):
        raise BadRequest(f"Scopes are {', '.join(sorted(SCOPES))}.", param="scopes")
    models = tuple(_text(body, "models", "*").replace(",", " ").split())
    if not models:
        raise BadRequest("Models are patterns of names, such as * for all or starter-*.", param="models")
    days = None if body.get("days") is None else _whole(body, "days", 3650)
    request = KeyRequest(
        _text(body, "team"), _text(body, "name", ""), frozenset(map(Scope, words)), models,
        seconds=None if days is None else days * 86_400.0,
    )  # fmt: skip
    created, text = await visit.host.tables(lambda tables: tables.keys.create(request))
    return {"id": created.id, "team": created.team, "value": text}


async def revoke(visit: Visit, body: Mapping[str, object]) -> Context:
    id_ = _text(body, "id")

    def work(tables: Tables) -> Key:
        tables.keys.check_admin_remains(lambda key: key.id == id_)
        return tables.keys.revoke(id_)

    revoked = await visit.host.tables(work)
    return {"id": revoked.id, "revoked": revoked.revoked}


async def rotate(visit: Visit, body: Mapping[str, object]) -> Context:
    """Create a successor. The old key stays valid for a day."""
    id_ = _text(body, "id")
    created, text = await visit.host.tables(lambda tables: tables.keys.rotate(id_, 86_400.0))
    return {"id": created.id, "team": created.team, "value": text}


async def weight(visit: Visit, body: Mapping[str, object]) -> Context:
    """Set a team's share of the engines, relative to other waiting teams."""
    id_, value = _text(body, "id"), body.get("weight")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest("Send `weight` as a number.", param="weight")
    changed = await visit.host.tables(lambda tables: tables.keys.edit_team(id_, weight=value))
    return {"id": changed.id, "weight": changed.weight}


async def texts(visit: Visit, body: Mapping[str, object]) -> Context:
    """Set whether a team's texts are stored. Turning it off deletes them."""
    id_, value = _text(body, "id"), body.get("store")
    if not isinstance(value, bool):
        raise BadRequest("Send `store` as true or false.", param="store")
    changed = await visit.host.tables(lambda tables: tables.keys.edit_team(id_, store_texts=value))
    return {"id": changed.id, "store": changed.store_texts}


async def limit(visit: Visit, body: Mapping[str, object]) -> Context:
    """Set a limit, replacing the one of the same kind."""
    requested = _limit(body)
    created = await visit.host.tables(lambda tables: tables.limits.set(requested))
    return {"id": created.id, "words": created.words}


async def unlimit(visit: Visit, body: Mapping[str, object]) -> Context:
    id_ = _text(body, "id")
    removed = await visit.host.tables(lambda tables: tables.limits.remove(id_))
    return {"id": removed.id}


async def simulate(visit: Visit, body: Mapping[str, object]) -> Context:
    """Return how many of the last days' requests a limit would have refused. Sets nothing."""
    requested, days = _limit(body), _whole(body, "days", 90, 7)
    outcome = await visit.host.tables(lambda tables: _simulated(tables, requested, days))
    words = {"words": requested.words, "amount": requested.display_amount, "days": days}
    return {
        **words,
        "requests": outcome.requests,
        "refused": outcome.refused,
        "first": outcome.first,
        "last": outcome.last,
    }


def _simulated(tables: Tables, requested: Limit, days: int) -> simulation.Outcome:
    now = time.time()
    return simulation.simulate(tables.database, requested, tables.limits.zone(requested), now - days * 86_400, now)


def _limit(body: Mapping[str, object]) -> Limit:
    """Parse a limit. Raises BadRequest."""
    owner, subject = _text(body, "owner", "team"), _text(body, "subject")
    try:
        kind, mode = Kind(_text(body, "kind")), Mode(_text(body, "mode", "enforce"))
    except ValueError:
        raise BadRequest(f"A limit is one of {', '.join(Kind)}; its mode is enforce, warn or shadow.") from None
    if owner not in ("team", "key"):
        raise BadRequest("A limit's owner is team or key.", param="owner")
    amount = amount_of(kind, _text(body, "amount"))
    return Limit("", "team" if owner == "team" else "key", subject, kind, amount, mode, _text(body, "model", ""))


def _text(body: Mapping[str, object], name: str, otherwise: str | None = None) -> str:
    value = body.get(name, otherwise)
    if not isinstance(value, str) or len(value) > 4096:
        raise BadRequest(f"Send `{name}` as a string.", param=name)
    return value.strip()


def _whole(body: Mapping[str, object], name: str, most: int, otherwise: int | None = None) -> int:
    value = body.get(name, otherwise)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not (isinstance(value, int) and 1 <= value <= most):
        raise BadRequest(f"Send `{name}` as a whole number from 1 to {most}.", param=name)
    return value


ACTIONS = {
    "team": team,
    "key": key,
    "revoke": revoke,
    "rotate": rotate,
    "weight": weight,
    "texts": texts,
    "limit": limit,
    "unlimit": unlimit,
    "simulate": simulate,
}
PAGE = Page("Teams", 70, frozenset((Scope.ADMIN,)), context, frozenset(("rows", "list", "limits")), ACTIONS)
