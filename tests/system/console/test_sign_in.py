"""A person signs in to a real server at a real provider, in a real browser."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.sign_in import SECRET, RunningProvider, running_provider
from tests.system.console.browsing import PHONE, faults, looking
from tests.system.serving import ROOT, Server


@pytest.fixture(scope="module")
def provider() -> Iterator[RunningProvider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def signing(provider: RunningProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without models and keys; the team `ops` is there, `search` is not."""
    folder = tmp_path_factory.mktemp("sign-in")
    (folder / "recipes").mkdir()
    data, file = folder / "data" / "here", provider.file(folder)
    run("teams", "create", "ops", "--data-dir", str(data))
    env = {**os.environ, "TEST_OIDC_SECRET": SECRET}
    with Server(data, (folder / "recipes",), "--oidc", str(file), env=env) as server:
        yield server.wait_ready()


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runtime.cli.main", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def test_without_a_key_or_session_nothing_is_open(signing: Server) -> None:
    assert httpx.get(f"{signing.url}/v1/models").status_code == 401
    assert httpx.get(f"{signing.url}/v1/status").status_code == 401


def test_a_person_signs_in_works_and_signs_out(browser: Any, signing: Server, provider: RunningProvider) -> None:
    context = browser.new_context(base_url=f"{signing.url}/console/")
    page = context.new_page()
    faulty: list[str] = []
    page.on("pageerror", lambda error: faulty.append(str(error)))
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
    assert not page.evaluate("document.cookie"), "no script reads a cookie"
    page.click("[data-sign-out]")
    page.wait_for_url(f"{provider.url}/oauth2/end_session**")
    page.goto(f"{signing.url}/console/teams")
    assert page.url.endswith("/console/sign-in?next=teams")
    assert not faulty
    context.close()


def test_a_person_without_a_team_reads_what_to_do(browser: Any, signing: Server, provider: RunningProvider) -> None:
    for person, words in (("bob", "roundhouse teams create search"), ("eve", "none of your groups")):
        context = browser.new_context(base_url=f"{signing.url}/console/")
        page = context.new_page()
        page.goto("provider-sign-in?next=models")
        page.click(f"button[value={person}]")
        page.wait_for_selector(f"text={words}")
        context.close()


def test_the_page_has_no_findings_at_both_widths(browser: Any, signing: Server) -> None:
    with looking(browser, signing.url) as page:
        page.goto("sign-in")
        assert faults(page) == []
        page.set_viewport_size({"width": PHONE, "height": 844})
        assert faults(page) == []


def test_the_log_has_no_secret_and_no_name(signing: Server, provider: RunningProvider) -> None:
    log = signing.log.read_text()
    assert '"signed in"' in log
    codes = [values["code"] for path, values, _ in provider.requests if path == "/oauth2/token"]
    assert codes
    assert not [private for private in (SECRET, "preferred_username", *codes) if private in log]
    fields = [json.loads(line) for line in log.splitlines() if '"signed in"' in line]
    assert {one["team"] for one in fields} == {"ops"}


def test_a_server_with_a_wrong_file_does_not_start(tmp_path: Path, provider: RunningProvider) -> None:
    file = provider.file(tmp_path, issuer="http://login.example", groups=[])
    refused = run("serve", "--oidc", str(file), "--data-dir", str(tmp_path / "data"))
    assert refused.returncode != 0
    assert "is no https URL" in refused.stderr
    assert "nobody could sign in" in refused.stderr
    assert "no client secret in TEST_OIDC_SECRET" in refused.stderr
