"""Signing in to a real server through a real provider in a real browser, set up by the blocks of docs/secure.md."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.docs.blocks import DOCS, Fence, fences
from tests.eventually import PATIENCE, eventually
from tests.fakes.sign_in import SECRET, RunningProvider, running_provider
from tests.system.console.browsing import PHONE, faults, looking
from tests.system.serving import ROOT, Server

FILE, SETUP, TOKEN = (
    part.text
    for part in fences((DOCS / "secure.md").read_text().splitlines())
    if isinstance(part, Fence)
    and part.text.startswith(("issuer:", "roundhouse teams create", "export ROUNDHOUSE_API_KEY"))
)
"""The page's provider file, the commands that start a server with it, and a program that uses a token."""
ISSUER, ADDRESS = "https://login.example/realms/company", "https://models.example"
LAB = {"group": "lab", "team": "lab"}
"""A group whose team does not exist."""


@pytest.fixture(scope="module")
def provider() -> Iterator[RunningProvider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def signing(provider: RunningProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without models and keys, set up for this provider as the page says."""
    folder = tmp_path_factory.mktemp("sign-in")
    (folder / "recipes").mkdir()
    document = msgspec.yaml.decode(FILE.replace(ISSUER, provider.url))
    document["groups"].append(LAB)
    (folder / "oidc.yaml").write_bytes(msgspec.yaml.encode(document))
    data = folder / "data" / "here"
    env = {**os.environ, "ROUNDHOUSE_OIDC_SECRET": SECRET, "ROUNDHOUSE_DATA_DIR": str(data)}
    *teams, serve = SETUP.strip().splitlines()
    for line in teams:
        assert run(*shlex.split(line)[1:], env=env).returncode == 0
    options = [str(folder / word) if word == "oidc.yaml" else word for word in shlex.split(serve)[2:]]
    cut = options.index("--public-url")  # this server has no other address than its own
    del options[cut : cut + 2]
    with Server(data, (folder / "recipes",), *options, env=env) as server:
        yield server.wait_ready()


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runtime.cli.main", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def test_nothing_is_open_without_a_key_or_a_session(signing: Server) -> None:
    assert signing.http.get("/v1/models").status_code == 401
    assert signing.http.get("/v1/status").status_code == 401


def test_a_person_signs_in_works_and_signs_out(browser: Any, signing: Server, provider: RunningProvider) -> None:
    context = browser.new_context(base_url=f"{signing.url}/console/")
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto("teams")
    assert page.url.endswith("/console/sign-in?next=teams")
    page.click("text=Sign in with your company's account")
    page.wait_for_url(f"{provider.url}/**")
    page.click("button[value=ada]")
    page.wait_for_url("**/console/teams")
    assert "ada" in page.inner_text("nav .foot")
    assert "ops" in page.inner_text("nav .foot")
    page.fill("#team input[name=id]", "growth")
    page.click("#team button[type=submit]")
    page.wait_for_selector("td:has-text('growth')")
    admin = page.evaluate("fetch('../v1/organization/projects').then((answer) => answer.status)")
    assert admin == 200, "the admin API, with the session"
    assert not page.evaluate("document.cookie"), "scripts cannot read the cookie"
    page.click("[data-sign-out]")
    page.wait_for_url(f"{provider.url}/oauth2/end_session**")
    page.goto(f"{signing.url}/console/teams")
    assert page.url.endswith("/console/sign-in?next=teams")
    assert not errors
    context.close()


def test_a_person_without_a_team_reads_the_remedy(browser: Any, signing: Server, provider: RunningProvider) -> None:
    for person, words in (("zoe", "roundhouse teams create lab"), ("eve", "none of your groups")):
        context = browser.new_context(base_url=f"{signing.url}/console/")
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.goto("provider-sign-in?next=models")
        page.click(f"button[value={person}]")
        page.wait_for_selector(f"text={words}")
        context.close()


def test_a_program_uses_an_access_token_as_the_page_says(signing: Server, provider: RunningProvider) -> None:
    tokens = f"{ISSUER}/protocol/openid-connect"
    code = TOKEN.replace(tokens, f"{provider.url}/oauth2").replace(ADDRESS, signing.url)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "NIGHTLY_SECRET": SECRET, "PATH": path, "no_proxy": "*"}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"ops", "search"} <= {team["id"] for team in json.loads(done.stdout.splitlines()[-1])["data"]}


@contextmanager
def session(signing: Server, provider: RunningProvider, sub: str) -> Iterator[httpx.Client]:
    """A client with the session of a person."""
    with httpx.Client(base_url=signing.url, headers={"Origin": signing.url}, timeout=PATIENCE) as client:
        redirect = client.get("/console/provider-sign-in")
        answer = provider.consent(redirect.headers["location"], sub)
        assert client.get("/console/signed-in", params=answer).status_code == 200
        yield client


def test_a_persons_batch_goes_on_after_they_sign_out(signing: Server, provider: RunningProvider) -> None:
    """It completes, and was not cancelled. Its one line fails because there is no model."""
    with session(signing, provider, "bob") as client:
        request = {"url": "/v1/embeddings", "requests": [{"body": {"model": "none", "input": "a"}}]}
        created = client.post("/v1/batch", json=request)
        assert created.status_code == 200, created.text
        assert client.post("/console/sign-out", json={}).status_code == 200
        assert client.get("/v1/batches").status_code == 401
    token = {"Authorization": f"Bearer {provider.access_token('bob')}"}

    def ended() -> dict[str, Any] | None:
        batch = signing.http.get(f"/v1/batches/{created.json()['batch_id']}", headers=token).json()
        return batch if batch["status"] not in ("validating", "in_progress") else None

    batch = eventually(ended)
    assert (batch["status"], batch["request_counts"]["failed"]) == ("completed", 1)


def test_the_sign_in_page_is_accessible_at_both_widths(browser: Any, signing: Server) -> None:
    with looking(browser, signing.url) as page:
        page.goto("sign-in")
        assert faults(page) == []
        page.set_viewport_size({"width": PHONE, "height": 844})
        assert faults(page) == []


def test_the_log_has_no_secret_and_no_name(signing: Server, provider: RunningProvider) -> None:
    log = signing.log.read_text()
    assert '"signed in"' in log
    codes = [values["code"] for path, values, _ in provider.requests if path == "/oauth2/token" and "code" in values]
    assert codes
    assert not [private for private in (SECRET, "preferred_username", "eyJ", *codes) if private in log]
    records = [json.loads(line) for line in log.splitlines() if '"signed in"' in line]
    assert {record["team"] for record in records} == {"ops", "search"}


def test_a_server_with_a_faulty_provider_file_does_not_start(tmp_path: Path, provider: RunningProvider) -> None:
    file = provider.file(tmp_path, issuer="http://login.example", groups=[])
    refused = run("serve", "--oidc", str(file), "--data-dir", str(tmp_path / "data"))
    assert refused.returncode != 0
    assert "is not an https URL" in refused.stderr
    assert "nobody could sign in" in refused.stderr
    assert "no client secret in TEST_OIDC_SECRET" in refused.stderr
