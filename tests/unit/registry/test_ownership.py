"""Which team's adapter a name means, for any adapters and any order of registering, deleting and sharing."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from registry.catalog import Catalog
from registry.errors import BadRequest, Conflict, NotFound
from registry.names import DEFAULT_TEAM
from registry.records import Adapter, AdapterKey
from tests.unit.registry.makers import adapter, recipe

TEAMS = (DEFAULT_TEAM, "search", "speech")
BASES = ("m", "n")
NAMES = ("tune", "legal")
KEYS = st.builds(AdapterKey, st.sampled_from(BASES), st.sampled_from(NAMES), st.sampled_from(TEAMS))
ADAPTERS = st.dictionaries(KEYS, st.booleans()).map(
    lambda found: [adapter(key.base, key.name, team=key.team, shared=shared) for key, shared in found.items()]
)


def catalog(*adapters: Adapter, ever: tuple[AdapterKey, ...] = ()) -> Catalog:
    return Catalog([recipe(base) for base in BASES], adapters, {}, ever)


def means(seen: Catalog, name: str) -> AdapterKey | None:
    """Return the adapter that a name means, or None if it means none or several."""
    with suppress(NotFound, BadRequest):
        version = seen.resolve(name).version
        return None if version is None else version.key
    return None


def spellings(key: AdapterKey) -> list[str]:
    return [key.name, f"{key.team}/{key.name}", f"{key.base}:{key.name}", f"{key.base}:{key.team}/{key.name}"]


@given(ADAPTERS, st.sampled_from(TEAMS))
def test_a_team_reaches_only_its_own_and_shared_adapters(adapters: list[Adapter], team: str) -> None:
    seen = catalog(*adapters).of(team)
    for one in adapters:
        allowed = one.key.team == team or one.shared
        full = f"{one.key.base}:{one.key.team}/{one.key.name}"
        assert means(seen, full) == (one.key if allowed else None)
        for name in spellings(one.key):
            found = means(seen, name)
            assert found is None or found.team == team or next(a for a in adapters if a.key == found).shared
    assert {a.key for a in seen.adapters()} == {a.key for a in adapters if a.key.team == team or a.shared}


@given(ADAPTERS, st.sampled_from(TEAMS))
def test_a_bare_name_means_the_teams_own_adapter_first(adapters: list[Adapter], team: str) -> None:
    seen = catalog(*adapters).of(team)
    for name in NAMES:
        own = [a.key for a in adapters if (a.key.team, a.key.name) == (team, name)]
        common = [a.key for a in adapters if (a.key.team, a.key.name) == (DEFAULT_TEAM, name) and a.shared]
        candidates = own or common
        assert means(seen, name) == (candidates[0] if len(candidates) == 1 else None)


@given(ADAPTERS, st.sampled_from(TEAMS))
def test_a_listed_adapter_can_be_requested_by_its_listed_name(adapters: list[Adapter], team: str) -> None:
    seen = catalog(*adapters).of(team)
    for one in seen.adapters():
        assert means(seen, f"{one.key.base}:{seen.spelled(one.key)}") == one.key


@given(ADAPTERS, st.sampled_from(TEAMS), st.sampled_from(TEAMS))
def test_unshared_adapters_of_another_team_change_nothing(adapters: list[Adapter], team: str, other: str) -> None:
    """Not even an error message reveals them."""
    hidden = [a for a in adapters if a.key.team == other != team and not a.shared]
    with_them = catalog(*adapters).of(team)
    without = catalog(*(a for a in adapters if a not in hidden)).of(team)
    for key in (AdapterKey(base, name, owner) for base in BASES for name in NAMES for owner in TEAMS):
        for name in spellings(key):
            assert means(with_them, name) == means(without, name)
            assert _words(with_them, name) == _words(without, name)


def _words(seen: Catalog, name: str) -> str:
    try:
        seen.resolve(name)
    except (NotFound, BadRequest) as error:
        return error.message
    return ""


class Life(RuleBasedStateMachine):
    """A name that meant a team's own adapter never means another team's later, whatever happens in between."""

    @initialize()
    def empty(self) -> None:
        self.current: dict[AdapterKey, bool] = {}
        self.ever: set[AdapterKey] = set()
        self.owned: set[tuple[str, str]] = set()

    @rule(key=KEYS, shared=st.booleans())
    def register(self, key: AdapterKey, shared: bool) -> None:
        self.current[key] = shared
        self.ever.add(key)

    @rule(key=KEYS)
    def delete(self, key: AdapterKey) -> None:
        self.current.pop(key, None)

    @invariant()
    def own_names_stay_own(self) -> None:
        adapters = [adapter(k.base, k.name, team=k.team, shared=shared) for k, shared in self.current.items()]
        now = catalog(*adapters, ever=tuple(self.ever))
        for team in TEAMS:
            for key in self.ever:
                for name in spellings(key):
                    found = means(now.of(team), name)
                    assert found is None or found.team == team or (team, name) not in self.owned
                    if found is not None and found.team == team:
                        self.owned.add((team, name))


TestLife = pytest.mark.long(Life.TestCase)


def test_an_administrator_sees_all_adapters_whose_names_cannot_become_aliases() -> None:
    found = catalog(adapter("m", "tune", team="search"))
    assert [a.key.team for a in found.of(DEFAULT_TEAM, all_teams=True).adapters()] == ["search"]
    assert found.adapters() == ()
    for alias in ("tune", "search/tune", "m:tune", "m:search/tune"):
        with pytest.raises(Conflict, match="adapter's name"):
            found.check_alias(alias, "m")
    assert found.check_alias("speech/tune", "m")


def test_a_models_name_cannot_be_used_by_a_teams_adapter() -> None:
    found = Catalog([recipe("m"), recipe("search/tune")])
    with pytest.raises(Conflict, match="'search/tune' is a model's name"):
        found.check_adapter(AdapterKey("m", "tune", "search"))
    assert found.check_adapter(AdapterKey("m", "tune", "speech"))
