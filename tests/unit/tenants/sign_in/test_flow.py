"""A sign-in at a real provider, and each of its faults."""

import logging
import re
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from registry.errors import Unauthorized, Unavailable
from tenants.caller import SCOPES, Person
from tenants.sign_in.flow import LONGEST_CODE, SECONDS, SignIn
from tenants.sign_in.provider import LARGEST
from tenants.sign_in.settings import OidcSettings
from tests.fakes.sign_in import SECRET, Change, RunningProvider
from tests.system.serving import free_port

BACK = "http://127.0.0.1:8000/console/signed-in"


def sign_in(provider: RunningProvider, clock: Any = time.time, **changes: Any) -> SignIn:
    return SignIn(msgspec.convert(provider.document(**changes), OidcSettings), clock)


async def finish(flow: SignIn, provider: RunningProvider, sub: str = "ada") -> tuple[Person, str]:
    departure = await flow.begin(BACK, "models")
    back = provider.consent(departure.url, sub)
    return await flow.finish(departure.cookie, back["state"], back["code"], BACK, back.get("iss"))


async def test_a_person_signs_in_with_pkce_and_the_clients_secret(provider: RunningProvider) -> None:
    person, page = await finish(sign_in(provider), provider)
    assert (person.name, person.team, person.scopes, page) == ("ada", "ops", SCOPES, "models")
    sent = {path: (values, head) for path, values, head in provider.requests}
    authorization, token = sent["/oauth2/authorize"][0], sent["/oauth2/token"]
    assert authorization["code_challenge_method"] == "S256"
    assert len(authorization["code_challenge"]) == 43
    assert authorization["redirect_uri"] == token[0]["redirect_uri"] == BACK
    assert re.fullmatch(r"[A-Za-z0-9._~-]{43,128}", token[0]["code_verifier"]), "RFC 7636, 4.1"
    assert "/userinfo" not in sent, "the token has the groups"
    assert token[1].startswith("Basic ")
    assert SECRET not in str(provider.requests[:-1])


async def test_a_server_of_a_fleet_finishes_another_servers_sign_in(provider: RunningProvider) -> None:
    first, second, other = (sign_in(provider) for _ in range(3))
    for flow in (first, second):
        flow.share(b"one secret for all of the fleet")
    for flow in (other, second):
        departure = await first.begin(BACK, "models")
        back = provider.consent(departure.url, "ada")
        finishing = flow.finish(departure.cookie, back["state"], back["code"], BACK, back.get("iss"))
        if flow is other:
            with pytest.raises(Unauthorized):
                await finishing
        else:
            assert (await finishing)[0].name == "ada"


async def test_a_public_client_sends_no_secret(provider: RunningProvider) -> None:
    with pytest.raises(Unauthorized):  # this provider knows no public clients
        await finish(sign_in(provider, client_secret_env=None), provider)
    [(values, head)] = [(values, head) for path, values, head in provider.requests if path == "/oauth2/token"]
    assert (values["client_id"], head) == ("roundhouse", "")


async def test_addresses_and_keys_are_fetched_once(provider: RunningProvider) -> None:
    flow = sign_in(provider)
    for sub in ("ada", "bob"):
        await finish(flow, provider, sub)
    paths = [path for path, *_ in provider.requests]
    assert paths.count("/.well-known/openid-configuration") == paths.count("/jwks") == 1


@pytest.mark.parametrize("change", [lambda claims: claims.pop("groups"), lambda claims: claims.update(groups=None)])
async def test_groups_missing_from_the_token_are_read_from_userinfo(provider: RunningProvider, change: Change) -> None:
    provider.change = change
    person, _ = await finish(sign_in(provider), provider)
    assert person.team == "ops"
    assert "/userinfo" in [path for path, *_ in provider.requests]


async def test_what_the_token_says_counts_for_all_but_the_groups(provider: RunningProvider) -> None:
    provider.change = lambda claims: claims.update(groups=None, preferred_username="Ada of the token")
    person, _ = await finish(sign_in(provider), provider)
    assert (person.team, person.name) == ("ops", "Ada of the token")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda claims: claims.update(nonce="another"), "invalid_claim"),
        (lambda claims: claims.pop("nonce"), "missing_claim"),
        (lambda claims: claims.update(iss="https://elsewhere.example"), "invalid_claim"),
        (lambda claims: claims.update(aud="another-client"), "invalid_claim"),
        (lambda claims: claims.update(aud=["roundhouse", "another"], azp="another"), "invalid_claim"),
        (lambda claims: claims.update(aud=["roundhouse", "another"]), "missing_claim"),
        (lambda claims: claims.update(exp=int(time.time()) - 3600), "expired_token"),
        (lambda claims: claims.pop("exp"), "missing_claim"),
        (lambda claims: claims.update(exp="soon"), ""),
        (lambda claims: claims.update(iat=int(time.time()) + 3600), ""),
        (lambda claims: claims.update(sub=7), "invalid_claim"),
        (lambda claims: claims.pop("sub"), "missing_claim"),
        (lambda claims: claims.update(sub=""), "names no one"),
        (lambda claims: claims.update(sub="bob", groups=None), "described another person"),
        (lambda claims: claims.update(at_hash="x"), "invalid_claim"),
    ],
)
async def test_a_token_with_an_invalid_claim_is_refused(
    provider: RunningProvider, change: Change, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "roundhouse.sign_in")  # an earlier test may have changed it
    provider.change = change
    with pytest.raises(Unauthorized) as refused:
        await finish(sign_in(provider), provider)
    assert refused.value.code == "sign_in_failed"
    assert cause in caplog.records[-1].cause  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "signature", ["another key", "none", "hmac of the secret", "hmac of the public key", "garbage"]
)
@pytest.mark.filterwarnings("ignore:JWS algorithm .none. is deprecated")  # used on purpose
async def test_a_token_with_another_signature_is_refused(provider: RunningProvider, signature: str) -> None:
    def resign(claims: dict[str, Any], key: Any) -> str:
        match signature:
            case "another key":
                other = RSAKey.generate_key(2048)
                return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, other)
            case "none":
                return jwt.encode({"alg": "none"}, claims, None, algorithms=["none"])
            case "hmac of the secret":
                return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(SECRET.ljust(32, "x")))
            case "hmac of the public key":
                shared = OctKey.import_key(key.as_dict(private=False)["n"])
                return jwt.encode({"alg": "HS256", "kid": key.kid}, claims, shared)
            case _:
                return "no.token.at-all"

    provider.resign = resign
    with pytest.raises(Unauthorized):
        await finish(sign_in(provider), provider)


@pytest.mark.parametrize(("size", "is_sent"), [(0, False), (1, True), (LONGEST_CODE, True), (LONGEST_CODE + 1, False)])
async def test_no_empty_or_endless_code_reaches_the_provider(
    provider: RunningProvider, size: int, is_sent: bool
) -> None:
    flow = sign_in(provider)
    departure = await flow.begin(BACK, "")
    state = provider.consent(departure.url, "ada")["state"]
    with pytest.raises(Unauthorized):
        await flow.finish(departure.cookie, state, "x" * size, BACK)
    assert ("/oauth2/token" in [path for path, *_ in provider.requests]) == is_sent


async def test_an_answer_without_an_id_token_is_refused(
    provider: RunningProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fetch_token(client: object, url: str, **about: str) -> dict[str, str]:
        return {"access_token": "x"}

    monkeypatch.setattr("tenants.sign_in.provider.AsyncOAuth2Client.fetch_token", fetch_token)
    with pytest.raises(Unauthorized) as refused:
        await finish(sign_in(provider), provider)
    assert refused.value.code == "sign_in_failed"
    assert "the provider sent no ID token" in [getattr(record, "cause", "") for record in caplog.records]


async def test_a_code_can_be_used_only_once(provider: RunningProvider) -> None:
    flow = sign_in(provider)
    departure = await flow.begin(BACK, "")
    back = provider.consent(departure.url, "ada")
    await flow.finish(departure.cookie, back["state"], back["code"], BACK)
    with pytest.raises(Unauthorized):
        await flow.finish(departure.cookie, back["state"], back["code"], BACK)
    with pytest.raises(Unauthorized):
        await flow.finish(departure.cookie, back["state"], "", BACK)


async def test_only_the_same_browser_can_finish_a_sign_in_in_time(provider: RunningProvider) -> None:
    now = 1e9
    flow = sign_in(provider, lambda: now)
    departure, other = await flow.begin(BACK, "models"), await flow.begin(BACK, "models")
    back = provider.consent(departure.url, "ada")
    state, code = back["state"], back["code"]
    later = departure.cookie.replace(f"{now:.0f}", f"{now + 5:.0f}")
    for cookie in ("", "x", other.cookie, later, departure.cookie.replace("models", "teams"), "models-9-" + "0" * 32):
        with pytest.raises(Unauthorized, match="Start again"):
            await flow.finish(cookie, state, code, BACK)
    for wrong in ("", "x" * 43, "ä", other.cookie):
        with pytest.raises(Unauthorized):
            await flow.finish(departure.cookie, wrong, code, BACK)
    with pytest.raises(Unauthorized):
        await flow.finish(departure.cookie, state, code, BACK, "https://elsewhere.example")
    restarted = sign_in(provider, lambda: now)
    with pytest.raises(Unauthorized):
        await restarted.finish(departure.cookie, state, code, BACK)
    now += SECONDS + 2
    with pytest.raises(Unauthorized):
        await flow.finish(departure.cookie, state, code, BACK)
    now -= SECONDS + 2
    assert not [path for path, *_ in provider.requests if path == "/oauth2/token"], "the code was not sent anywhere"
    person, _ = await flow.finish(departure.cookie, state, code, BACK, provider.url)
    assert person.name == "ada"


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://elsewhere.example"},
        {"token_endpoint": "http://elsewhere.example/token"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"end_session_endpoint": "http://elsewhere.example"},
        {"filler": "x" * LARGEST},
    ],
)
async def test_an_invalid_discovery_document_is_refused(provider: RunningProvider, discovery: dict[str, Any]) -> None:
    provider.discovery.update(discovery)
    with pytest.raises(Unavailable) as refused:
        await sign_in(provider).begin(BACK, "")
    assert refused.value.code == "sign_in_unavailable"


async def test_keys_that_cannot_be_read_are_a_503(provider: RunningProvider) -> None:
    provider.discovery["jwks_uri"] = f"{provider.url}/.well-known/openid-configuration"
    with pytest.raises(Unavailable) as refused:
        await finish(sign_in(provider), provider)
    assert refused.value.code == "sign_in_unavailable"


async def test_an_unreachable_provider_is_a_503(provider: RunningProvider) -> None:
    with pytest.raises(Unavailable, match="sign in with a key"):
        await sign_in(provider, issuer=f"http://localhost:{free_port()}").begin(BACK, "")


async def test_signing_out_redirects_to_the_providers_end_of_session(provider: RunningProvider) -> None:
    url = await sign_in(provider).provider.sign_out_url("http://127.0.0.1:8000/console/sign-in")
    assert url is not None
    parts = urlsplit(url)
    assert f"{parts.scheme}://{parts.netloc}" == provider.url
    assert parse_qs(parts.query)["post_logout_redirect_uri"] == ["http://127.0.0.1:8000/console/sign-in"]
    assert await sign_in(provider, ends_session=False).provider.sign_out_url(BACK) is None
    provider.discovery["end_session_endpoint"] = None
    assert await sign_in(provider).provider.sign_out_url(BACK) is None


async def test_no_secret_code_or_token_is_logged(provider: RunningProvider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roundhouse")
    flow = sign_in(provider)
    await finish(flow, provider)
    provider.change = lambda claims: claims.pop("nonce")
    with pytest.raises(Unauthorized):
        await finish(flow, provider)
    logged = "\n".join(str(vars(record)) for record in caplog.records if record.name.startswith("roundhouse"))
    assert "refused a sign-in" in logged
    sent = [values for path, values, _ in provider.requests if path == "/oauth2/token"]
    private = [SECRET, "ada", *(values[name] for values in sent for name in ("code", "code_verifier"))]
    assert not [text for text in private if text in logged]
