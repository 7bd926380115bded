"""Adapters and models in the state, whose changes are atomic."""

from dataclasses import replace
from pathlib import Path

import pytest

from registry.catalog import Catalog
from registry.errors import BadRequest, Conflict, NotFound
from registry.learning import HALF_LIFE
from registry.records import AdapterKey, LoadKey, NewVersion, Probe, UsedNames
from registry.state import versions
from registry.state.database import State
from tests.unit.registry.makers import KEY, digest, new


def test_versions_are_registered_pointed_to_and_rolled_back(state: State) -> None:
    adapters = state.adapters
    first = adapters.register(KEY, new(1, Probe("2+2?", "4")))
    assert (first.created, first.version.tag, first.version.probe) == (True, "v1", Probe("2+2?", "4"))
    again = adapters.register(KEY, new(1))
    assert (again.created, again.version) == (False, first.version)
    corrected = adapters.register(KEY, new(1, Probe("2+2?", "four")))
    assert (corrected.created, corrected.version.tag) == (False, "v1")
    assert adapters.get(KEY).current.probe == Probe("2+2?", "four")
    assert adapters.register(KEY, new(2)).version.number == 2
    assert adapters.register(KEY, new(1)).version.number == 3, "registering old content again makes a new version"
    assert adapters.point(KEY, "v1").current.number == 1
    assert [adapters.rollback(KEY).current.number for _ in range(3)] == [3, 2, 1]
    with pytest.raises(Conflict) as caught:
        adapters.rollback(KEY)
    assert caught.value.code == "nothing_to_roll_back"


def test_versions_remember_the_base_that_they_were_registered_for(state: State) -> None:
    adapters = state.adapters
    adapters.register(KEY, new(1))
    adapters.register(KEY, replace(new(2), base_origin="hub a/b"))
    adapters.remember_base(KEY.base, "path /x")
    assert [version.base_origin for version in adapters.get(KEY).versions] == ["path /x", "hub a/b"]
    adapters.register(KEY, replace(new(2), base_origin="hub c/d"))
    assert adapters.get(KEY).current.base_origin == "hub c/d", "its owner registered it again for the new base"


def test_a_version_and_its_alias_are_registered_atomically(state: State) -> None:
    adapters = state.adapters
    assert adapters.register(KEY, new(1), "prod").adapter.aliases == {"prod": 1}
    for bad in ("v3", "sha256:00", "a b", ""):
        with pytest.raises(BadRequest):
            adapters.register(KEY, new(2), bad)
    assert (adapters.get(KEY).current.number, adapters.get(KEY).aliases) == (1, {"prod": 1})
    done = adapters.register(KEY, new(2), "prod")
    assert (done.created, done.version.number, done.adapter.aliases) == (True, 2, {"prod": 2})
    adapters.set_alias(KEY, "prod", "v1")
    again = adapters.register(KEY, new(2), "prod")
    assert (again.created, again.adapter.aliases) == (False, {"prod": 2})


def test_aliases_are_set_moved_and_removed(state: State) -> None:
    adapters = state.adapters
    adapters.register(KEY, new(1))
    adapters.register(KEY, new(2))
    assert adapters.set_alias(KEY, "prod", "v1").version("prod").number == 1
    assert adapters.set_alias(KEY, "prod").version("prod").number == 2
    assert adapters.set_alias(KEY, "next", "prod").aliases == {"prod": 2, "next": 2}
    assert adapters.remove_alias(KEY, "next").aliases == {"prod": 2}
    with pytest.raises(NotFound):
        adapters.remove_alias(KEY, "next")
    with pytest.raises(NotFound):
        adapters.set_alias(KEY, "x", "v7")
    for bad in ("v3", "a b", "", "../x", "x" * 65, "prod\n"):
        with pytest.raises(BadRequest):
            adapters.set_alias(KEY, bad)


def test_versions_and_adapters_in_use_are_not_deleted(state: State) -> None:
    adapters = state.adapters
    for number in (1, 2, 3):
        adapters.register(KEY, new(number))
    adapters.set_alias(KEY, "prod", "v2")
    with pytest.raises(Conflict, match="alias 'prod'"):
        adapters.delete_version(KEY, "v2")
    with pytest.raises(Conflict, match="it is the current version"):
        adapters.delete_version(KEY, "v3")
    with pytest.raises(Conflict, match="held by alias 'prod'"):
        adapters.delete(KEY)
    assert state.adapters.garbage() == ()
    left = adapters.delete_version(KEY, "v2", force=True)
    assert left is not None
    assert (left.aliases, left.current.number) == ({}, 3)
    left = adapters.delete_version(KEY, "v3", force=True)
    assert left is not None
    assert left.current.number == 1, "the remaining version that was current last"
    assert adapters.delete_version(KEY, "v1", force=True) is None
    with pytest.raises(NotFound):
        adapters.get(KEY)
    assert adapters.garbage() == (digest(1), digest(2), digest(3))


def test_a_corrected_probe_is_that_of_one_version(state: State) -> None:
    adapters, other = state.adapters, AdapterKey("m", "other")
    for key in (KEY, other):
        for number in (1, 2):
            adapters.register(key, new(number, Probe("2+2?", str(number))))
    adapters.register(KEY, new(2, Probe("2+2?", "four")))
    probes = {key: [version.probe for version in adapters.get(key).versions] for key in (KEY, other)}
    assert probes == {
        KEY: [Probe("2+2?", "1"), Probe("2+2?", "four")], other: [Probe("2+2?", "1"), Probe("2+2?", "2")],
    }  # fmt: skip


def test_a_version_is_deleted_while_an_alias_points_to_another(state: State) -> None:
    adapters = state.adapters
    for number in range(1, 4):
        adapters.register(KEY, new(number))
    adapters.set_alias(KEY, "prod", "v1")
    left = adapters.delete_version(KEY, "v2")
    assert left is not None
    assert ([version.number for version in left.versions], left.aliases) == ([1, 3], {"prod": 1})


def test_a_pinned_adapter_is_not_deleted_and_numbers_continue(state: State) -> None:
    adapters = state.adapters
    adapters.register(KEY, new(1))
    assert adapters.pin(KEY).pinned
    with pytest.raises(Conflict, match="its pin"):
        adapters.delete(KEY)
    assert not adapters.pin(KEY, False).pinned
    adapters.delete(KEY)
    assert adapters.register(KEY, new(2)).version.number == 2, "a@v1 must never mean other content than before"


def test_deleting_a_version_keeps_rollback_consistent(state: State) -> None:
    """Without 2, the history 1, 2, 1 becomes 1, so that a rollback never stays at the same version."""
    adapters = state.adapters
    adapters.register(KEY, new(1))
    adapters.register(KEY, new(2))
    adapters.point(KEY, "v1")
    adapters.delete_version(KEY, "v2")
    with pytest.raises(Conflict):
        adapters.rollback(KEY)


def test_old_versions_are_pruned_but_not_those_in_use(state: State) -> None:
    adapters = state.adapters
    for number in range(1, 10):
        adapters.register(KEY, new(number))
    adapters.set_alias(KEY, "prod", "v2")
    adapters.point(KEY, "v4")
    adapters.register(KEY, new(10))
    pruned = adapters.prune(KEY, 2, {digest(1)})
    assert [version.number for version in pruned.versions] == [1, 2, 4, 9, 10]
    assert (pruned.current.number, pruned.aliases) == (10, {"prod": 2})
    assert [adapters.rollback(KEY).current.number for _ in range(3)] == [4, 9, 4]
    assert adapters.garbage() == tuple(map(digest, (3, 5, 6, 7, 8)))


def test_a_rollback_after_pruning_never_stays_where_it_is(state: State) -> None:
    adapters = state.adapters
    for number in (1, 2):
        adapters.register(KEY, new(number))
    adapters.point(KEY, "v1")
    adapters.register(KEY, new(3))
    adapters.prune(KEY, 1)
    assert adapters.rollback(KEY).current.number == 1
    with pytest.raises(Conflict, match="nothing to roll back"):
        adapters.rollback(KEY)


def test_the_newest_version_follows_a_deleted_one_without_another_before_it(state: State) -> None:
    adapters = state.adapters
    for number in (1, 2, 3):
        adapters.register(KEY, new(number))
    for _ in range(2):
        adapters.rollback(KEY)
    left = adapters.delete_version(KEY, "v1", force=True)
    assert left is not None
    assert left.current.number == 3


def test_the_way_back_is_bounded(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MOST_CURRENTS", 3)
    adapters = state.adapters
    for number in (1, 2):
        adapters.register(KEY, new(number))
    for number in range(20):
        adapters.point(KEY, f"v{1 + number % 2}")
    assert [adapters.rollback(KEY).current.number for _ in range(2)] == [1, 2]
    with pytest.raises(Conflict, match="nothing to roll back"):
        adapters.rollback(KEY)


def test_aliases_are_bounded(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MOST_ALIASES", 2)
    adapters = state.adapters
    adapters.register(KEY, new(1), alias="a")
    adapters.register(KEY, new(2), alias="b")
    assert adapters.set_alias(KEY, "a", "v2").aliases == {"a": 2, "b": 2}
    with pytest.raises(Conflict, match="has 2 aliases") as caught:
        adapters.set_alias(KEY, "c")
    assert caught.value.code == "too_many_aliases"


def test_garbage_is_content_that_no_version_uses(state: State) -> None:
    adapters = state.adapters
    adapters.register(KEY, new(1))
    adapters.register(AdapterKey("other", "a"), new(1))
    adapters.delete(KEY)
    assert adapters.garbage(on_disk=[digest(1), digest(9)]) == ()
    assert adapters.unknown([digest(1), digest(9)]) == {digest(9)}
    assert not adapters.mark_removed(digest(1))
    adapters.delete(AdapterKey("other", "a"))
    assert adapters.garbage() == (digest(1),)
    assert adapters.mark_removed(digest(1))
    assert adapters.garbage() == ()
    assert adapters.garbage(on_disk=[digest(1)]) == (digest(1),), "as on a server that was away"
    adapters.announce(digest(1), 1)
    assert adapters.garbage() == (digest(1),), "it is stored again"


def test_removed_content_is_known_for_90_days_and_longer_if_it_is_in_use(tmp_path: Path) -> None:
    now = [1e9]
    with State(tmp_path, clock=lambda: now[0]) as state:
        adapters = state.adapters
        for number in (1, 2, 3):
            adapters.announce(digest(number), 1)
            assert adapters.mark_removed(digest(number))
        adapters.register(KEY, new(2))
        now[0] += 91 * 86_400
        assert adapters.mark_removed(digest(3))
        assert adapters.unknown([digest(1), digest(2), digest(3)]) == {digest(1)}
        assert adapters.all()[0].current.digest == digest(2)


def test_bad_names_change_nothing(state: State) -> None:
    for key in (AdapterKey("m", "../a"), AdapterKey("m", ""), AdapterKey("m", "a\n"), AdapterKey("m", "x" * 65)):
        with pytest.raises(BadRequest):
            state.adapters.register(key, new(1))
    with pytest.raises(BadRequest):
        state.adapters.register(KEY, NewVersion("sha256:12", 8, 1, ""))
    assert state.adapters.all() == ()


def test_pins_and_aliases_of_models_are_set_and_removed(state: State) -> None:
    models = state.models
    models.set_pin("m", True)
    models.set_pin("n", False)
    models.set_pin("m", None)
    assert models.pins() == {"n": False}
    models.set_alias("chat", "m")
    models.set_alias("chat", "n")
    assert models.aliases() == {"chat": "n"}
    models.remove_alias("chat")
    with pytest.raises(NotFound):
        models.remove_alias("chat")


def test_measured_loads_are_averaged(state: State) -> None:
    key = LoadKey("m", 1, "0.32.0", "cpu")
    assert state.models.measured(key) is None
    state.models.record_load(key, 1000, {"weights": 1.0})
    state.models.record_load(key, 900, {"weights": 2.0, "warming": 5.0})
    measured = state.models.measured(key)
    assert measured is not None
    assert (measured.resident_bytes, measured.margin_bytes, measured.count) == (970, 0, 2)
    assert measured.seconds == pytest.approx({"weights": 1.3, "warming": 5.0})
    other = key._replace(recipe_version=2)
    assert state.models.measured(other) is None
    state.models.record_margin(other, 50)
    assert state.models.measured(other) is None


def test_a_margin_decays_until_it_is_measured_again(tmp_path: Path) -> None:
    now = 0.0
    key = LoadKey("m", 1, "0.32.0", "cpu")
    with State(tmp_path, lambda: now) as state:

        def margin() -> int:
            measured = state.models.measured(key)
            assert measured is not None
            return measured.margin_bytes

        state.models.record_load(key, 1000, {})
        state.models.record_margin(key, 400)
        now = HALF_LIFE
        state.models.record_load(key, 1000, {})
        assert margin() == 200, "a load without a margin does not change it"
        state.models.record_margin(key, 300)
        assert margin() == 300
        state.models.forget("other")
        assert margin() == 300
        state.models.forget("m")
        assert state.models.measured(key) is None


def test_measured_sleeps_and_wakes_are_averaged(state: State) -> None:
    key = LoadKey("m", 1, "0.32.0", "NVIDIA H200")
    assert state.models.slept(key) is None
    state.models.record_sleep(key, 50, 900, 10.0)
    state.models.record_wake(key, 2.0)
    state.models.record_sleep(key, 60, 950, 0.0)
    slept = state.models.slept(key)
    assert slept is not None
    assert (slept.device_bytes, slept.host_bytes, slept.count) == (60, 950, 2)
    assert slept.seconds == pytest.approx({"sleep": 7.0, "wake": 2.0})
    state.models.record_sleep(key, 60, 950, 16.0, first=True)
    slept = state.models.slept(key)
    assert slept is not None
    assert slept.seconds == pytest.approx({"first": 16.0, "sleep": 7.0, "wake": 2.0})


def test_only_the_servers_user_may_read_the_state(tmp_path: Path) -> None:
    """Even if an earlier release left it readable by others."""
    old = tmp_path / "old"
    with State(old):
        pass
    old.chmod(0o755)
    (old / "state.db").chmod(0o644)
    for folder in (old, tmp_path / "new"):
        with State(folder) as state:
            state.models.set_pin("m", True)
            assert folder.stat().st_mode & 0o777 == 0o700
            files = {file.name: file.stat().st_mode & 0o077 for file in folder.glob("state.db*")}
            assert files == {"state.db": 0, "state.db-wal": 0, "state.db-shm": 0}


def test_the_same_name_of_two_teams_is_two_adapters(state: State) -> None:
    """They have separate numbers, aliases, pins and deletions."""
    mine, theirs = KEY._replace(team="search"), KEY._replace(team="speech")
    state.adapters.register(mine, new(1))
    state.adapters.register(mine, new(2), "prod")
    state.adapters.register(theirs, new(3), shared=True)
    assert [a.key for a in state.adapters.all()] == [mine, theirs]
    assert (state.adapters.get(mine).shared, state.adapters.get(theirs).shared) == (False, True)
    assert state.adapters.get(theirs).current.tag == "v1"
    assert state.adapters.get(theirs).aliases == {}
    with pytest.raises(NotFound):
        state.adapters.get(KEY)
    state.adapters.delete(mine, force=True)
    assert state.adapters.get(theirs).current.digest == new(3).digest
    assert state.adapters.ever() == {mine, theirs}
    assert state.adapters.register(mine, new(4)).version.tag == "v3"


def test_a_new_version_is_shared_like_the_one_before(state: State) -> None:
    assert not state.adapters.register(KEY, new(1)).adapter.shared
    assert state.adapters.share(KEY, True).shared
    assert state.adapters.register(KEY, new(2)).adapter.shared
    same = state.adapters.register(KEY, new(2), shared=False)
    assert (same.created, same.adapter.shared) == (False, False)


def test_a_change_reads_only_its_own_name_again(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading thousands of adapters after each registration would take longer the more there are."""
    adapters = state.adapters
    keys = [AdapterKey("small", name, team) for name in ("b", "d", "a") for team in ("z", "y")]
    for number, key in enumerate(keys):
        adapters.register(key, new(number))
    before = adapters.all()
    with monkeypatch.context() as patched:
        patched.setattr(adapters, "_load", None)
        new_key = AdapterKey("small", "c", "y")
        adapters.register(new_key, new(9), "prod", shared=True)
        adapters.register(keys[0], new(8))
        adapters.rollback(keys[0])
        adapters.pin(keys[1])
        adapters.delete(keys[2])
        with pytest.raises(NotFound):
            adapters.delete(keys[2])
        remembered = adapters.all(), adapters.ever()
    assert remembered[0] != before
    assert all(one in remembered[0] for one in before if one.key in keys[3:]), "others are unchanged"
    adapters._cache = None
    assert (adapters.all(), adapters.ever()) == remembered


def test_names_that_were_used_once_cost_a_catalog_nothing(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """A team may use a new name for each of its runs. The event loop makes a catalog after each change."""
    first, second = AdapterKey("m", "first", "a"), AdapterKey("m", "second", "a")
    state.adapters.register(first, new(1))
    state.adapters.delete(first)
    state.adapters.register(second, new(2))
    ever = state.adapters.ever()
    state.adapters.pin(second, True)
    assert state.adapters.ever() is ever
    monkeypatch.setattr(UsedNames, "__iter__", None)
    found = Catalog([], state.adapters.all(), ever=ever).of("a")
    assert found._owned.ever is ever
    assert found._owned.find("first") == ()
    assert found._owned.existed("first", "m")
