"""Connections to providers: redirects, certificates, keys, and the pause before a second attempt."""

import asyncio
import logging
import shutil
import ssl
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from routing.providers import upstream
from runtime.http import attempts
from tests.fakes import traces
from tests.fakes.provider import Play, Seen, provider_fake
from tests.unit.providers.plays import AFTER, BEFORE, FIRST, SHORT
from tests.unit.providers.rig import KEY, rigged


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(tmp_path: Path, status: int) -> None:
    async with provider_fake(lambda seen: traces.chat("big")) as target:
        play = Play(status=status, headers={"location": f"{target.url}/chat/completions"})
        async with rigged(tmp_path, lambda seen: play) as rig:
            found = await rig.chat()
            assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_answer")
            assert "redirect" in found.json()["error"]["message"]
            assert target.seen == []


@pytest.fixture
def self_signed(tmp_path: Path) -> ssl.SSLContext:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*words, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def test_nothing_is_sent_to_a_server_with_an_untrusted_certificate(
    tmp_path: Path, self_signed: ssl.SSLContext
) -> None:
    """It would learn the request's text and the key."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=self_signed)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with rigged(tmp_path, lambda seen: Play(), base_url=url) as rig:
            found = await rig.chat()
    assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_unreachable")
    assert (
        "certificate is not one that this machine trusts (self-signed certificate)" in found.json()["error"]["message"]
    )
    assert b"".join(received) == b""


async def test_a_key_is_in_no_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the lowest level, for every failure of a provider, even if it repeats the key itself."""
    caplog.set_level(logging.DEBUG)
    reported = Play([f'{{"error": {{"message": "no such key: {KEY}"}}}}'.encode()], status=401)
    plays = [traces.chat("big"), reported, *(play for play, *_ in [*BEFORE.values(), *FIRST.values(), *AFTER.values()])]
    for number, play in enumerate(plays):
        for is_stream in (False, True):
            folder = tmp_path / f"{number}{is_stream}"
            async with rigged(folder, lambda seen, play=play: play, timeouts=SHORT, max_answer=2**20) as rig:  # type: ignore[misc]
                rig.fake.gate.set()
                found = await rig.chat(stream=is_stream)
                assert rig.fake.seen[0].headers["authorization"] == f"Bearer {KEY}"
                assert KEY not in found.text
    assert caplog.records, "there are log lines to check"
    assert not [record for record in caplog.records if KEY in record.getMessage() + repr(record.__dict__)]


@pytest.mark.parametrize("status", [200, 400, 403, 429, 500])
@pytest.mark.parametrize("shape", ['{"error": {"message": "you sent %s"}}', "you sent %s"])
async def test_a_key_that_a_provider_repeats_is_not_reported(tmp_path: Path, status: int, shape: str) -> None:
    """Clients with a key of this server could read the operator's own key."""
    reported = Play([(shape % f"Bearer {KEY}").encode()], status=status)
    async with rigged(tmp_path, lambda seen: reported) as rig:
        for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
            body = {"model": "there/big", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
            found = await rig.http.post(path, json=body)
            assert found.status_code >= 400
            assert KEY not in found.text
        found = await rig.http.post("/v1/embeddings", json={"model": "there/embed", "input": "a"})
        assert KEY not in found.text


@pytest.mark.parametrize(("after", "waits"), [("7", True), ("20", True), ("21", False)])
async def test_a_retry_after_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, waits: bool
) -> None:
    """Nothing is sent before the pause is over. A longer pause than 20 s is left to the client."""
    monkeypatch.setattr(upstream, "FIRST_SECONDS", 0.0)
    slept: list[tuple[float, int]] = []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0.01)
        slept.append((seconds, len(rig.fake.seen)))

    def script(seen: Seen) -> Play:
        return traces.chat("big") if slept else traces.error(429, **{"retry-after": after})

    monkeypatch.setattr(attempts, "asyncio", SimpleNamespace(sleep=sleep, timeout=asyncio.timeout))
    async with rigged(tmp_path, script, retries=1) as rig:
        found = await rig.chat()
        assert slept == ([(float(after), 1)] if waits else [])
        assert found.status_code == (200 if waits else 429)
        assert found.headers.get("retry-after") == (None if waits else after)
