"""A model hub on a local port with repositories made from folders, revisions, gated access and faults on demand."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

GATED = 20 * 2**20
"""Bytes from which the gate applies, as huggingface_hub writes files in pieces of 10 MiB."""
TOKEN = "hf_secret"


@dataclass
class FakeHub:
    """`repos`: id -> commit -> file name -> bytes. `names`: (id, branch or tag) -> commit."""

    url: str = ""
    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    break_after: int | None = None
    """Send only this many bytes of a safetensors file, then close the connection."""
    fail_with: int | None = None
    """Answer every request with this status."""
    page: bytes | None = None
    """Answer every request with this page, like a proxy that wants a password."""
    spoil: bool = False
    """Send different bytes than were pushed, of the same length."""
    surplus: int = 0
    """Number of zeros after a large file that the hub does not announce."""
    unannounced: dict[str, int] = field(default_factory=dict)
    """Number of zeros after a file of this name, which the list of files leaves out."""
    listed: list[dict[str, Any]] = field(default_factory=list)
    """More entries for the list of files with their digests."""
    gate: threading.Event | None = None
    """The second half of a file of more than GATED bytes waits for it."""
    tokens: set[str | None] = field(default_factory=set)
    """The Authorization headers of requests for existing files."""
    requested: list[str] = field(default_factory=list)
    """'METHOD path' of each request."""

    def push(self, repo: str, folder: Path, branch: str = "main", more: Mapping[str, bytes] | None = None) -> str:
        """Make a commit with the files of `folder` and `more`, and return it."""
        there = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in there}
        files |= more or {}
        commit = hashlib.sha1(json.dumps({k: hashlib.sha1(v).hexdigest() for k, v in files.items()}).encode())
        self.repos.setdefault(repo, {})[commit.hexdigest()] = files
        self.names[repo, branch] = commit.hexdigest()
        return commit.hexdigest()

    def forget(self) -> None:
        """Return to the initial state."""
        fresh = FakeHub(self.url)
        for name in vars(fresh):
            setattr(self, name, getattr(fresh, name))

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment for a process that uses this hub and keeps its files in `home`."""
        return {
            **os.environ,
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "300",
            "NO_PROXY": "127.0.0.1",
        }

    def commit(self, repo: str, revision: str) -> str | None:
        revision = unquote(revision)
        return revision if revision in self.repos[repo] else self.names.get((repo, revision))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, path = self.hub, urlsplit(self.path).path
        hub.requested.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if hub.page is not None:
            return self._send(200, hub.page, body)
        if hub.fail_with is not None:
            return self._send(hub.fail_with, b"{}", body)
        api = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if api else parts[:2])
        if repo not in hub.repos or repo in hub.private:
            return self._send(401, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        if repo in hub.gated and not api:
            return self._send(403, b"{}", body, {"X-Error-Code": "GatedRepo"})
        hub.tokens.add(self.headers.get("Authorization"))
        commit = hub.commit(repo, parts[5] if api else parts[3])
        if commit is None:
            return self._send(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        files = hub.repos[repo][commit]
        if api and parts[4] == "tree":
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": _blob(data)} for name, data in files.items()
            ]
            return self._send(200, json.dumps(tree).encode(), body)
        if api:
            siblings = [{"rfilename": name, "size": len(data), **_digests(name, data)} for name, data in files.items()]
            siblings += hub.listed
            info: dict[str, Any] = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": []}
            return self._send(200, json.dumps(info).encode(), body)
        name = unquote("/".join(parts[4:]))
        if name not in files:
            return self._send(404, b"{}", body, {"X-Error-Code": "EntryNotFound"})
        data = files[name]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_etag(name, data)}"'}
        if hub.spoil and _is_large(name):
            data = bytes(len(data))
        if hub.surplus and _is_large(name):
            data += bytes(hub.surplus)
        data += bytes(hub.unannounced.get(name, 0))
        begin, status = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0], 200
        if body and begin.isdigit() and int(begin):
            status, headers["Content-Range"] = 206, f"bytes {begin}-{len(data) - 1}/{len(data)}"
            data = data[int(begin) :]
            hub.requested.append(f"from {begin}")
        cut = hub.break_after if _is_large(name) else None
        self._send(status, data, body, headers, cut, hub.gate if len(data) > GATED else None)

    def _send(
        self,
        status: int,
        data: bytes,
        body: bool,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
        gate: threading.Event | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if body and gate is not None:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            gate.wait()
            self.wfile.write(data[len(data) // 2 :])
        elif body:
            self.wfile.write(data if cut is None else data[:cut])
        if cut is not None:
            self.close_connection = True


def _is_large(name: str) -> bool:
    """Return whether a file is in large file storage."""
    return name.endswith((".safetensors", ".bin", ".gguf", ".model"))


def _blob(data: bytes) -> str:
    """Return Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _etag(name: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if _is_large(name) else _blob(data)


def _digests(name: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"blobId": _blob(data)}
    if _is_large(name):
        found["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return found


@contextmanager
def serve() -> Iterator[FakeHub]:
    """Run a hub inside the block."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
