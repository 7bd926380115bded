"""Access tokens of a real provider, and each of their faults."""

import asyncio
import time
from typing import Any

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from registry.errors import Forbidden, RoundhouseError, Unauthorized, Unavailable
from tenants.caller import SCOPES, Scope
from tenants.sign_in.provider import FRESH, KEYS_AGAIN, OidcProvider
from tenants.sign_in.settings import OidcSettings
from tenants.sign_in.tokens import LONGEST, SECONDS, AccessTokens
from tests.fakes.clocks import Clock
from tests.fakes.sign_in import AUDIENCE, RunningProvider
from tests.system.serving import free_port


def tokens_of(provider: RunningProvider, clock: Any = time.time, **changes: Any) -> AccessTokens:
    settings = msgspec.convert(provider.document(**{"audience": AUDIENCE, **changes}), OidcSettings)
    return AccessTokens(settings, OidcProvider(settings, clock), clock)


async def refusal(tokens: AccessTokens, token: str) -> RoundhouseError:
    with pytest.raises(RoundhouseError) as refused:
        await tokens.check(token)
    with pytest.raises(Unauthorized):
        tokens.person(token)
    return refused.value


async def test_a_token_stands_for_a_person_with_its_groups(provider: RunningProvider) -> None:
    tokens, token = tokens_of(provider), provider.access_token("bob")
    assert tokens.is_issued(token)
    await tokens.check(token)
    person = tokens.person(token)
    assert (person.name, person.team, person.scopes) == ("bob", "search", {Scope.INFER, Scope.USAGE})
    listed = provider.access_token("nightly", aud=["account", AUDIENCE], groups=["ml-platform"])
    await tokens.check(listed)
    assert (tokens.person(listed).name, tokens.person(listed).scopes) == ("nightly", SCOPES)


async def test_a_person_has_the_same_id_by_token_and_by_sign_in(provider: RunningProvider) -> None:
    from tenants.sign_in.settings import id_of

    tokens, token = tokens_of(provider), provider.access_token("ada")
    await tokens.check(token)
    assert tokens.person(token).id == id_of(provider.url, "ada")


async def test_the_provider_is_called_once_for_many_tokens(provider: RunningProvider) -> None:
    tokens = tokens_of(provider)
    both = [provider.access_token(sub) for sub in ("ada", "bob")]
    await asyncio.gather(*(tokens.check(token) for token in both * 20))
    paths = [path for path, *_ in provider.requests]
    assert sorted(paths) == ["/.well-known/openid-configuration", "/jwks"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"iss": "https://elsewhere.example"}, "'iss'"),
        ({"aud": "roundhouse"}, "'aud'"),
        ({"aud": ["account"]}, AUDIENCE),
        ({"aud": None}, "'aud'"),
        ({"aud": {"a": 1}}, "'aud'"),
        ({"exp": None}, "'exp'"),
        ({"exp": "soon"}, "'exp'"),
        ({"sub": None}, "'sub'"),
        ({"sub": ""}, "'sub'"),
        ({"sub": 7}, "'sub'"),
        ({"nbf": int(time.time()) + 30 * 86_400}, ""),
        ({"iat": int(time.time()) + 30 * 86_400}, ""),
    ],
)
async def test_the_error_names_an_invalid_claim(provider: RunningProvider, changes: dict[str, Any], words: str) -> None:
    refused = await refusal(tokens_of(provider), provider.access_token(**changes))
    assert refused.code == "invalid_access_token"
    assert words in refused.message


@pytest.mark.parametrize(
    "signature", ["another key", "unknown key", "none", "hmac of the public key", "cut", "changed"]
)
@pytest.mark.filterwarnings("ignore:JWS algorithm .none. is deprecated")  # used on purpose
async def test_a_token_with_another_signature_is_refused(provider: RunningProvider, signature: str) -> None:
    good = provider.access_token()
    head, payload, mark = good.split(".")
    public = OctKey.import_key(provider.key.as_dict(private=False)["n"])
    claims = jwt.decode(good, provider.key, algorithms=["RS256"]).claims
    forged = {
        "another key": lambda: provider.access_token(key=RSAKey.generate_key(2048)),
        "unknown key": lambda: provider.access_token(key=RSAKey.generate_key(2048), header={"kid": "another"}),
        "none": lambda: jwt.encode({"alg": "none"}, claims, None, algorithms=["none"]),
        "hmac of the public key": lambda: jwt.encode({"alg": "HS256", "kid": provider.key.kid}, claims, public),
        "cut": lambda: f"{head}.{payload}.{mark[:-8]}",
        "changed": lambda: f"{head}.{provider.access_token('bob').split('.')[1]}.{mark}",
    }[signature]()
    tokens = tokens_of(provider)
    assert tokens.is_issued(forged)
    assert (await refusal(tokens, forged)).code == "invalid_access_token"


async def test_keys_are_fetched_again_only_after_a_pause(provider: RunningProvider) -> None:
    clock = Clock(time.time())
    tokens = tokens_of(provider, clock)
    for _ in range(5):
        await refusal(tokens, provider.access_token(header={"kid": "another"}))
    assert [path for path, *_ in provider.requests].count("/jwks") == 1
    clock.now += KEYS_AGAIN
    await refusal(tokens, provider.access_token(header={"kid": "another"}))
    assert [path for path, *_ in provider.requests].count("/jwks") == 2


async def test_addresses_and_keys_are_fetched_again_after_an_hour_and_before_that_need_no_client(
    provider: RunningProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(time.time())
    tokens, ends = tokens_of(provider, clock), int(clock.now + 2 * FRESH)
    await tokens.check(provider.access_token("ada", exp=ends))
    clock.now += FRESH - 1
    with monkeypatch.context() as patch:
        patch.setattr(OidcProvider, "_client", None)
        await tokens.check(provider.access_token("bob", exp=ends))
    clock.now += 1
    await tokens.check(provider.access_token("nightly", exp=ends, groups=["ml-platform"]))
    paths = [path for path, *_ in provider.requests]
    assert sorted(paths) == ["/.well-known/openid-configuration"] * 2 + ["/jwks"] * 2


async def test_a_token_is_valid_until_it_expires_and_checked_every_12_hours(
    provider: RunningProvider,
) -> None:
    clock = Clock(time.time())
    tokens = tokens_of(provider, clock)
    short, long = provider.access_token(), provider.access_token(exp=int(clock.now) + 10 * SECONDS)
    for token in (short, long):
        await tokens.check(token)
    clock.now += 700
    assert (await refusal(tokens, short)).code == "access_token_expired"
    assert tokens.person(long).name == "ada"
    clock.now += SECONDS
    with pytest.raises(Unauthorized):
        tokens.person(long)
    await tokens.check(long)
    assert tokens.person(long).name == "ada"


async def test_no_token_is_valid_without_a_group_or_an_audience(provider: RunningProvider) -> None:
    refused = await refusal(tokens_of(provider), provider.access_token("eve"))
    assert isinstance(refused, Forbidden)
    assert refused.code == "no_group"
    assert (await refusal(tokens_of(provider, audience=None), provider.access_token())).code == "access_tokens_off"
    assert not [path for path, *_ in provider.requests if path == "/userinfo"], "userinfo is not used for tokens"


def test_texts_that_are_no_tokens_of_the_provider_are_left_to_the_keys(provider: RunningProvider) -> None:
    tokens = tokens_of(provider)
    other = provider.access_token(iss="https://elsewhere.example")
    texts = (
        "",
        "rh-x",
        "a.b.c",
        "..",
        "ä.ä.ä",
        "e30.WzFd.x",
        "e30." + "W" * 5000 + ".x",
        "x" * LONGEST + ".b.c",
        other,
    )
    assert not [text for text in texts if tokens.is_issued(text)]


async def test_an_unreachable_provider_is_a_503_for_all_waiting_checks(provider: RunningProvider) -> None:
    away = f"http://localhost:{free_port()}"
    tokens = tokens_of(provider, issuer=away)
    waiting = [tokens.check(provider.access_token(sub, iss=away)) for sub in ("ada", "bob")]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    assert "sign in with a key" in str(answers[0])
