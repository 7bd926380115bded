"""deploy/nginx.conf with a real nginx: TLS, streams without delay, and uploads that nginx would refuse by default."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import pytest
from openai import OpenAI

from tests.deploy.test_files import DEPLOY
from tests.eventually import PATIENCE, eventually
from tests.ports import is_open
from tests.system.serving import PACK, Server, free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]


class Proxy:
    """nginx with our example file, except for the port, certificate, upstream and prefix.

    prefix: of the paths at which the server is reached, such as /ai.
    """

    def __init__(self, folder: Path, upstream: int, prefix: str = "") -> None:
        self.port, self.certificate = free_port(), folder / "cert.pem"
        key = folder / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", self.certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        site = (DEPLOY / "nginx.conf").read_text()
        for old, new in (
            ("listen 443 ", f"listen 127.0.0.1:{self.port} "),
            ("/etc/ssl/roundhouse/cert.pem", str(self.certificate)),
            ("/etc/ssl/roundhouse/key.pem", str(key)),
            ("server 127.0.0.1:8000;", f"server 127.0.0.1:{upstream};"),
            ("location / {", f"location {prefix}/ {{"),
            ("proxy_pass http://roundhouse;", f"proxy_pass http://roundhouse{'/' if prefix else ''};"),
        ):
            assert old in site
            site = site.replace(old, new)
        (folder / "site.conf").write_text(site)
        places = "\n".join(
            f"  {name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
            f"http {{\n  access_log off;\n{places}\n  include {folder}/site.conf;\n}}\n"
        )
        if os.geteuid() == 0:  # otherwise its workers would run as another user, who may not read this folder
            text = (folder / "nginx.conf").read_text()
            (folder / "nginx.conf").write_text(f"user root;\n{text}")
        assert NGINX is not None
        self.process = subprocess.Popen(
            [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=(folder / "stderr").open("w")
        )
        trust = ssl.create_default_context(cafile=str(self.certificate))
        self.http = httpx.Client(base_url=f"https://127.0.0.1:{self.port}", verify=trust, timeout=PATIENCE)
        eventually(lambda: is_open(self.port), lambda: (folder / "stderr").read_text(), PATIENCE)

    def close(self) -> None:
        self.http.close()
        self.process.terminate()
        self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def proxy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path_factory.mktemp("nginx"), server.port)
    yield proxy
    proxy.close()


@pytest.mark.real
def test_a_client_streams_through_tls(proxy: Proxy) -> None:
    client = OpenAI(base_url=f"https://127.0.0.1:{proxy.port}/v1", api_key="none", http_client=proxy.http)
    stream = client.chat.completions.create(
        model="uppercase", messages=[{"role": "user", "content": "hello world"}], temperature=0, stream=True
    )
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == "HELLO WORLD"


@pytest.mark.real
def test_an_upload_gets_through_and_a_too_large_one_gets_the_servers_own_answer(proxy: Proxy) -> None:
    sound = (PACK / "samples" / "kitchen-light.wav").read_bytes()
    form = {"model": "starter-speech", "response_format": "text"}
    received = proxy.http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", sound)})
    assert received.text.strip() == "please turn on the light in the kitchen"
    large = proxy.http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"\0" * (33 << 20))})
    assert large.status_code == 413
    assert large.headers["content-type"] == "application/json", "nginx refused it, not the server"
    assert large.json()["error"]["message"]


@pytest.mark.real
def test_a_page_of_the_server_may_change_something_at_any_port(proxy: Proxy) -> None:
    own = f"https://127.0.0.1:{proxy.port}"
    assert proxy.http.post("/v1/models/starter-embed/plan", headers={"Origin": own}).status_code == 200
    assert proxy.http.post("/v1/models/starter-embed/plan", headers={"Origin": f"{own}0"}).status_code == 403


@pytest.mark.real
def test_batches_of_both_sdks_work_under_a_prefix(server: Server, tmp_path: Path) -> None:
    proxy = Proxy(tmp_path, server.port, "/ai")
    base = f"https://127.0.0.1:{proxy.port}/ai"
    client = OpenAI(base_url=f"{base}/v1", api_key="none", http_client=proxy.http)
    messages: Any = [{"role": "user", "content": "hello world"}]
    body = {"model": "uppercase", "messages": messages, "temperature": 0}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    assert client.files.wait_for_processing(file.id).status == "processed"
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    eventually(lambda: client.batches.retrieve(batch.id).status == "completed")
    output = client.batches.retrieve(batch.id).output_file_id
    assert output is not None
    assert "HELLO WORLD" in client.files.content(output).text
    trust = httpx2.Client(verify=ssl.create_default_context(cafile=str(proxy.certificate)), timeout=PATIENCE)
    batches = anthropic.Anthropic(base_url=base, api_key="none", http_client=trust).messages.batches
    request: Any = {"custom_id": "a", "params": {"model": "uppercase", "max_tokens": 32, "messages": messages}}
    made = batches.create(requests=[request])
    eventually(lambda: batches.retrieve(made.id).processing_status == "ended")
    (entry,) = batches.results(made.id)
    assert entry.result.type == "succeeded"
    assert entry.result.message.content[0].type == "text"
    assert entry.result.message.content[0].text == "HELLO WORLD"
    proxy.close()


@pytest.mark.real
def test_metrics_are_not_for_everybody(proxy: Proxy) -> None:
    assert proxy.http.get("/metrics").status_code == 404
    assert proxy.http.get("/health/ready").status_code == 200


def test_each_part_of_a_stream_is_sent_before_the_next_one_is_made(tmp_path: Path) -> None:
    """The upstream waits until the client has read the first part, before the request's body is complete."""
    seen, listening = threading.Event(), socket.create_server(("127.0.0.1", 0))
    missed: list[str] = []

    def upstream() -> None:
        connection, _ = listening.accept()
        with connection:
            data = b""
            while b"first half" not in data:  # nginx must not wait for the whole body
                data += connection.recv(65536)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: 1\n\n"
            )
            if not seen.wait(PATIENCE):
                missed.append("the first part did not get through")
            connection.sendall(b"data: 2\n\n")

    thread = threading.Thread(target=upstream, daemon=True)
    thread.start()
    proxy = Proxy(tmp_path, listening.getsockname()[1])
    try:
        trust = ssl.create_default_context(cafile=str(proxy.certificate))
        plain = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)
        with trust.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            head = (
                "POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
            )
            client.sendall(head.encode() + b"first half")
            answer = b""
            while b"data: 1\n\n" not in answer:
                part = client.recv(65536)
                assert part, answer
                answer += part
            assert b"data: 2" not in answer
            seen.set()
            while b"data: 2\n\n" not in answer:
                part = client.recv(65536)
                assert part, answer
                answer += part
    finally:
        proxy.close()
        listening.close()
    thread.join(PATIENCE)
    assert missed == []
