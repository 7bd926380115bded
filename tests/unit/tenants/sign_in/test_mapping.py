"""Groups are mapped to a team and scopes by a file, whose faults are reported."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from registry.errors import Forbidden, Unfit
from tenants.caller import SCOPES, Scope
from tenants.sign_in.settings import OidcSettings, id_of, is_safe, person_of, read_oidc
from tests.fakes.sign_in import GROUPS
from tests.system.serving import ROOT

USUAL = {"issuer": "https://login.example/realms/company", "client_id": "roundhouse", "groups": GROUPS}


def settings(**changes: Any) -> OidcSettings:
    return msgspec.convert(USUAL | changes, OidcSettings)


def read(tmp_path: Path, text: str) -> OidcSettings:
    path = tmp_path / "oidc.yaml"
    path.write_text(text)
    return read_oidc(path)


@pytest.mark.parametrize(
    ("groups", "team", "scopes"),
    [
        (["ml-platform"], "ops", SCOPES),
        (["search-team"], "search", {Scope.INFER}),
        (["ml-readers", "search-team"], "search", {Scope.INFER, Scope.USAGE}),
        (["search-team", "ml-platform"], "ops", SCOPES),
        ("search-team", "search", {Scope.INFER}),
        ([7, None, "search-team"], "search", {Scope.INFER}),
    ],
)
def test_the_first_entry_sets_the_team_and_all_of_its_entries_the_scopes(
    groups: object, team: str, scopes: set[Scope]
) -> None:
    person = person_of(settings(), {"sub": "1", "groups": groups})
    assert (person.team, person.scopes) == (team, scopes)


@pytest.mark.parametrize("claims", [{}, {"groups": []}, {"groups": ["sales"]}, {"groups": {"ml-platform": 1}}])
def test_a_person_without_a_group_of_the_file_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(Forbidden) as refused:
        person_of(settings(), {"sub": "1", **claims})
    assert refused.value.code == "no_group"


def test_a_star_matches_all_and_a_claim_may_be_a_path_or_a_url() -> None:
    anyone = settings(groups=[{"group": "*", "team": "default"}])
    assert person_of(anyone, {"sub": "1"}).scopes == {Scope.INFER}
    nested = settings(groups_claim="realm_access.roles")
    assert person_of(nested, {"sub": "1", "realm_access": {"roles": ["ml-platform"]}}).team == "ops"
    by_url = settings(groups_claim="https://example.com/groups")
    assert person_of(by_url, {"sub": "1", "https://example.com/groups": ["ml-platform"]}).team == "ops"


def test_a_persons_id_depends_on_issuer_and_subject_and_is_no_key_id() -> None:
    ids = {id_of(issuer, sub) for issuer in ("https://a.example", "https://b.example") for sub in ("1", "2")}
    assert len(ids) == 4
    assert all(len(id_) == 8 and id_[0] == "@" for id_ in ids), "the ledger's column has eight characters"


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"email": "ada@example.com"}, "ada@example.com"),
        ({"preferred_username": "ada", "email": "x"}, "ada"),
        ({"preferred_username": "a\nda"}, "1"),
        ({"name": "x" * 500}, "x" * 128),
    ],
)
def test_a_person_is_named_by_the_best_claim(claims: dict[str, Any], name: str) -> None:
    assert person_of(settings(), {"sub": "1", "groups": ["ml-platform"], **claims}).name == name


def test_the_secret_of_a_file_is_read_each_time(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("one\n")
    text = msgspec.yaml.encode(USUAL | {"client_secret_file": str(secret)}).decode()
    found = read(tmp_path, text)
    assert found.client_secret() == "one"
    secret.write_text("two")
    assert found.client_secret() == "two"
    assert read(tmp_path, msgspec.yaml.encode(USUAL).decode()).client_secret() is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"issuer": "http://login.example"}, "is not an https URL"),
        ({"issuer": "login.example"}, "is not an https URL"),
        ({"issuer": "https://me:secret@login.example"}, "is not an https URL"),
        ({"client_id": ""}, "client_id: it is empty"),
        ({"client_secret_env": "A", "client_secret_file": "b"}, "not both"),
        ({"client_secret_env": "ROUNDHOUSE_NO_SUCH_SECRET"}, "no client secret in ROUNDHOUSE_NO_SUCH_SECRET"),
        ({"audience": ""}, "audience: it is empty"),
        ({"audience": "roundhouse"}, "ID tokens would be accepted"),
        ({"scopes": ["profile"]}, "'openid' is missing"),
        ({"groups": []}, "nobody could sign in"),
        ({"groups": [{"group": "a", "team": "A team"}]}, "'A team' is not a team id"),
        ({"groups": [{"group": "a", "team": "a", "scopes": ["root"]}]}, "'root' is not a scope of 'a'; write infer"),
        ({"groups": [{"group": "a", "team": "a", "scopes": []}]}, "an empty list is not a scope"),
        ({"secret": "x"}, "unknown field"),
        ({"issuer": 7}, "str"),
    ],
)
def test_each_fault_of_a_file_says_what_to_write(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Unfit) as refused:
        read(tmp_path, msgspec.yaml.encode(USUAL | changes).decode())
    assert words in " ".join(refused.value.faults)
    assert refused.value.code == "bad_oidc_file"


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://login.example/realms/x", True),
        ("http://localhost:8080/x", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:9/", True),
        ("http://127.0.0.1.example/", False),
        ("ftp://localhost/", False),
        ("https://login.example/#part", False),
        ("https://me@login.example/", False),
        ("https://", False),
        ("https://[::1", False),
    ],
)
def test_an_address_of_a_provider_is_encrypted_or_on_this_machine(url: str, safe: bool) -> None:
    assert is_safe(url) is safe


@pytest.mark.parametrize("text", ["", "a: [", "\x00", "[1]", "issuer: 2026-02-30", "x" * ((1 << 20) + 1)])
def test_invalid_and_missing_files_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Unfit):
        read(tmp_path, text)
    with pytest.raises(Unfit, match="cannot be used"):
        read_oidc(tmp_path / "missing.yaml")


def test_the_example_in_the_docs_is_valid_and_every_setting_is_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_OIDC_SECRET", "secret")
    page = (ROOT / "docs" / "secure.md").read_text()
    found = read(tmp_path, page.split("```yaml\n")[1].split("```")[0])
    assert [rule.team for rule in found.groups] == ["ops", "search"]
    for name in OidcSettings.__struct_fields__:
        assert f"`{name}`" in page
