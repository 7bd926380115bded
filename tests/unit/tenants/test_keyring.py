"""The caller of a key: the table in `tenants.keys.keyring`, row by row."""

from typing import Any

import pytest

from registry.errors import RoundhouseError, Unauthorized
from tenants.caller import EVERYBODY, VISITOR, Caller, Person, Scope, ServiceClass
from tenants.keys import secret
from tenants.keys.keyring import OPEN, KeyEntry, Keyring, TeamEntry
from tests.fakes.clocks import Clock
from tests.unit.tenants.conftest import PEPPER

GOOD, OTHER, EXPIRED, REVOKED, ARCHIVED, UNKNOWN = (secret.make() for _ in range(6))
FORGED = secret.NewKey(GOOD.id, f"rh-{GOOD.id}_{UNKNOWN.text[12:55]}")
WRONG = FORGED.text + secret._checksum(FORGED.text)
SCOPES = frozenset((Scope.INFER,))


def known(key: secret.NewKey, team: str = "search", *, expires: float | None = None, revoked: bool = False) -> KeyEntry:
    return KeyEntry(secret.digest(PEPPER, key.text), Caller(team, key.id, SCOPES), expires, revoked)


def ring(clock: Clock, *, is_open: bool) -> Keyring:
    keys = {
        GOOD.id: known(GOOD),
        OTHER.id: known(OTHER, "speech", expires=clock.now + 10),
        EXPIRED.id: known(EXPIRED, expires=clock.now),
        REVOKED.id: known(REVOKED, revoked=True),
        ARCHIVED.id: known(ARCHIVED, "old"),
    }
    return Keyring(keys, PEPPER, is_open=is_open, archived=["old"], clock=clock)


@pytest.mark.parametrize("sent", [[], ["none"], ["sk-abc"], [GOOD.text], [GOOD.text, "x"], ["rh-"], ["x" * 100_000]])
def test_a_server_without_keys_accepts_any_request(sent: list[str]) -> None:
    assert OPEN.identify(sent) is EVERYBODY


def test_a_server_open_to_other_hosts_requires_a_key_from_the_start(clock: Clock) -> None:
    with pytest.raises(Unauthorized):
        Keyring({}, PEPPER, is_open=False, clock=clock).identify(["x"])


@pytest.mark.parametrize("is_open", [False, True])
def test_an_active_key_identifies_its_caller(clock: Clock, is_open: bool) -> None:
    keys = ring(clock, is_open=is_open)
    assert keys.identify([GOOD.text]) == Caller("search", GOOD.id, SCOPES)
    assert keys.identify([GOOD.text, GOOD.text]).team == "search", "the same key in two headers"
    assert keys.identify([OTHER.text]).team == "speech"
    clock.now += 10
    with pytest.raises(Unauthorized, match="expired"):
        keys.identify([OTHER.text])


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ([EXPIRED.text], "api_key_expired"),
        ([REVOKED.text], "api_key_revoked"),
        ([ARCHIVED.text], "team_archived"),
        ([UNKNOWN.text], "invalid_api_key"),
        ([WRONG], "invalid_api_key"),
        ([GOOD.text[:-1]], "invalid_api_key"),
        ([GOOD.text + "a"], "invalid_api_key"),
        ([GOOD.text * 2000], "invalid_api_key"),
        ([GOOD.text, OTHER.text], "invalid_api_key"),
        ([GOOD.text, "x"], "invalid_api_key"),
    ],
)
def test_invalid_keys_are_refused(clock: Clock, is_open: bool, sent: list[str], code: str) -> None:
    with pytest.raises(Unauthorized) as error:
        ring(clock, is_open=is_open).identify(sent)
    assert error.value.code == code
    assert error.value.status == 401
    assert not any(text in error.value.message for text in sent), "an error never contains the key"


@pytest.mark.parametrize("sent", [[], [""], ["none"], ["sk-live-1234"], ["Bearer"], ["é" * 20]])
def test_a_caller_without_one_of_our_keys_is_a_visitor_or_refused(clock: Clock, sent: list[str]) -> None:
    visitor = ring(clock, is_open=True).identify(sent)
    assert (visitor.team, visitor.key, visitor.scopes) == ("default", None, {Scope.INFER})
    assert visitor.ceiling is ServiceClass.INTERACTIVE
    with pytest.raises(RoundhouseError) as error:
        ring(clock, is_open=False).identify(sent)
    assert error.value.code == ("invalid_api_key" if sent else "missing_api_key")


def test_another_pepper_refuses_every_key(clock: Clock) -> None:
    keys = Keyring({GOOD.id: known(GOOD)}, b"other" * 10, is_open=False, clock=clock)
    with pytest.raises(Unauthorized, match="wrong"):
        keys.identify([GOOD.text])


def test_a_caller_sees_the_models_and_adapters_of_its_key() -> None:
    assert EVERYBODY.sees("anything", "at all")
    assert not EVERYBODY.is_limited
    caller = Caller("t", models=("llama", "qwen*"), adapters=("sql-*", "qwen-2:*"))
    assert caller.is_limited
    assert caller.sees("llama")
    assert caller.sees("llama", "sql-fast")
    assert not caller.sees("llama", "legal")
    assert caller.sees("qwen-2", "legal")
    assert not caller.sees("gpt", "sql-fast")
    assert not caller.sees("LLAMA")
    assert caller.sees("llama@3")
    assert caller.sees("llama@3", "sql-fast")


def test_background_work_has_the_current_rights_of_its_key(clock: Clock) -> None:
    old, new, other, gone = (secret.make() for _ in range(4))
    entries = {
        old.id: known(old, expires=clock.now + 5),
        other.id: known(other, revoked=True),
        gone.id: known(gone, "archived"),
    }
    before = Keyring(entries, PEPPER, is_open=False, archived=["archived"], clock=clock)
    assert before.by_id(old.id, "search").key == old.id
    for key, code in ((other.id, "api_key_revoked"), (gone.id, "team_archived"), ("unknown0", "api_key_revoked")):
        with pytest.raises(Unauthorized) as error:
            before.by_id(key, "search")
        assert error.value.code == code
    with pytest.raises(Unauthorized):
        before.by_id("", "")
    assert Keyring({}, PEPPER, is_open=True).by_id("", "").key is None
    clock.now += 5
    with pytest.raises(Unauthorized) as error:
        before.by_id(old.id, "search")
    assert error.value.code == "api_key_expired"
    successor = KeyEntry(secret.digest(PEPPER, new.text), Caller("search", new.id, SCOPES, line=old.id), None, False)
    rotated = Keyring({**entries, new.id: successor}, PEPPER, is_open=False, clock=clock)
    assert rotated.by_id(old.id, "search").key == new.id, "the key's successor"


def test_a_revoked_keys_successor_is_found_without_looking_at_all_keys(clock: Clock) -> None:
    """Each of a team's 100 batches asks twice a second, on the event loop, and a server has 20,000 keys."""

    class Entries(dict[str, KeyEntry]):
        reads = 0

        def values(self) -> Any:
            self.reads += 1
            return super().values()

    old, new = secret.make(), secret.make()
    successor = KeyEntry(secret.digest(PEPPER, new.text), Caller("search", new.id, SCOPES, line=old.id), None, False)
    entries = Entries({old.id: known(old, revoked=True), new.id: successor})
    ring = Keyring(entries, PEPPER, is_open=False, clock=clock)
    entries.reads = 0
    assert ring.by_id(old.id, "search").key == new.id
    assert entries.reads == 0


def test_with_sign_in_a_caller_without_a_key_is_no_administrator() -> None:
    closed = Keyring({}, PEPPER, is_open=False, sign_in=True)
    with pytest.raises(Unauthorized):
        closed.identify(())
    visited = Keyring({}, PEPPER, is_open=True, sign_in=True)
    assert visited.identify(()) is VISITOR
    with pytest.raises(Unauthorized):
        visited.identify([GOOD.text])


def test_a_person_is_a_caller_of_an_existing_team() -> None:
    teams = {"search": TeamEntry("salt", 3.0), "old": TeamEntry()}
    ring = Keyring({}, PEPPER, is_open=False, archived=["old"], teams=teams, sign_in=True)
    caller = ring.member(Person("@abcdefg", "ada", "search", frozenset((Scope.USAGE,))))
    assert (caller.team, caller.key, caller.scopes, caller.salt, caller.weight) == (
        "search", "@abcdefg", {Scope.USAGE}, "salt", 3.0,
    )  # fmt: skip
    assert caller.ceiling is ServiceClass.INTERACTIVE
    with pytest.raises(Unauthorized) as refused:
        ring.member(Person("@abcdefg", "ada", "old", frozenset()))
    assert refused.value.code == "team_archived"
    with pytest.raises(Unauthorized) as refused:
        ring.member(Person("@abcdefg", "ada", "other", frozenset()))
    assert refused.value.code == "team_missing"


def test_a_persons_background_work_continues_while_the_team_exists() -> None:
    ring = Keyring({}, PEPPER, is_open=False, archived=["old"], teams={"search": TeamEntry("salt"), "old": TeamEntry()})
    caller = ring.by_id("@abcdefg", "search")
    assert (caller.team, caller.key, caller.scopes, caller.salt) == ("search", "@abcdefg", {Scope.INFER}, "salt")
    for team, code in (("old", "team_archived"), ("other", "team_missing")):
        with pytest.raises(Unauthorized) as refused:
            ring.by_id("@abcdefg", team)
        assert refused.value.code == code
