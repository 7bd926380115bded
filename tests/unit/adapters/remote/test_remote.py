"""Adapters by address: what is fetched, and how each failure is reported."""

import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import pytest

from adapters import remote
from adapters.content.forms import CONFIG, TENSORS
from adapters.remote import download
from adapters.remote_hosts import SourceClient
from adapters.types import UrlSource
from registry.bounds import Bounds
from registry.errors import BadRequest, NotFound, RoundhouseError, TooLarge, Unavailable
from registry.storage.reserve import DiskReserve
from tests.unit.adapters.makers import write_adapter
from tests.unit.adapters.rig import Rig

RESERVE = DiskReserve(Path(), 0)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files. A path that begins with `/to/` redirects to the URL after it."""

    def do_GET(self) -> None:
        self._answer(super().do_GET)

    def do_HEAD(self) -> None:
        self._answer(super().do_HEAD)

    def _answer(self, serve: Callable[[], None]) -> None:
        if not self.path.startswith("/to/"):
            serve()
            return
        self.send_response(302)
        self.send_header("location", self.path.removeprefix("/to/"))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A site with an adapter as the folder legal/, and as the archives legal.tar.gz and latest."""
    write_adapter(tmp_path / "site" / "legal")
    with tarfile.open(tmp_path / "site" / "legal.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "site" / "legal", "legal")
    shutil.copy(tmp_path / "site" / "legal.tar.gz", tmp_path / "site" / "latest")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "site"))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def fetch(url: str, out: Path, bounds: Bounds | None = None) -> None:
    download(UrlSource(url=url), out, bounds or Bounds(), RESERVE)


def test_the_files_of_a_folder_are_fetched(site: str, tmp_path: Path, out: Path) -> None:
    (tmp_path / "site" / "legal" / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "site" / "legal" / "optimizer.pt").write_bytes(b"x")
    fetch(f"{site}/legal/", out)
    assert sorted(path.name for path in out.iterdir()) == sorted([CONFIG, TENSORS, "chat_template.jinja"])
    for name in (CONFIG, TENSORS):
        assert (out / name).read_bytes() == (tmp_path / "site" / "legal" / name).read_bytes()


def test_an_archive_is_fetched_whole(site: str, tmp_path: Path, out: Path) -> None:
    fetch(f"{site}/legal.tar.gz", out)
    assert (out / "legal.tar.gz").read_bytes() == (tmp_path / "site" / "legal.tar.gz").read_bytes()


def test_any_store_that_fsspec_knows_is_read_alike(tmp_path: Path, out: Path) -> None:
    folder = write_adapter(tmp_path / "it")
    memory = fsspec.filesystem("memory")
    for name in (CONFIG, TENSORS):
        memory.pipe(f"/bucket/{name}", (folder / name).read_bytes())
    try:
        fetch("memory://bucket", out)
    finally:
        memory.rm("/bucket", recursive=True)
    assert (out / TENSORS).read_bytes() == (folder / TENSORS).read_bytes()


@pytest.mark.parametrize(
    ("path", "bounds", "kind"),
    [
        ("nowhere", {}, NotFound),
        ("nowhere.zip", {}, NotFound),
        ("legal", {"adapter_bytes": 1000}, TooLarge),
        ("legal", {"adapter_config_bytes": 10}, TooLarge),
        ("legal.tar.gz", {"adapter_bytes": 1000}, TooLarge),
    ],
)
def test_addresses_without_an_acceptable_adapter_are_refused(
    site: str, out: Path, path: str, bounds: dict[str, Any], kind: type[RoundhouseError]
) -> None:
    with pytest.raises(kind):
        fetch(f"{site}/{path}", out, Bounds(**bounds))


@pytest.mark.parametrize(("query", "has_hint"), [("", False), ("?X-Amz-Signature=5d", True)])
def test_an_expired_address_is_named_as_such(site: str, out: Path, query: str, has_hint: bool) -> None:
    with pytest.raises(NotFound) as error:
        fetch(f"{site}/nowhere.zip{query}", out)
    assert ("it may have expired" in error.value.message) == has_hint


def test_a_host_that_does_not_answer_is_a_temporary_failure(out: Path) -> None:
    with pytest.raises(Unavailable) as error:
        fetch("http://127.0.0.1:1/legal", out)
    assert error.value.retry_after


@pytest.mark.parametrize(
    "target",
    ["http://localhost:{port}", "http://127.0.0.2:{port}", "http://169.254.169.254", "http://2130706433:{port}"],
)
def test_a_redirect_to_a_private_address_is_refused(site: str, out: Path, target: str) -> None:
    port = site.rpartition(":")[2]
    with pytest.raises(BadRequest, match=r"cannot be read: .* is (private|not a valid|not a complete)") as error:
        fetch(f"{site}/to/{target.format(port=port)}/legal.tar.gz", out)
    assert error.value.code == "source_not_supported"
    assert not list(out.iterdir())


def test_a_redirect_on_the_same_host_is_followed(site: str, out: Path) -> None:
    fetch(f"{site}/to/{site}/legal.tar.gz", out)
    assert [path.name for path in out.iterdir()] == ["legal.tar.gz"]


@pytest.mark.parametrize("url", ["https://169.254.169.254/legal", "https://[fe80::1]/legal", "https://0.0.0.0/legal"])
def test_no_connection_goes_to_a_clouds_credentials(out: Path, url: str) -> None:
    with pytest.raises(BadRequest) as error:
        fetch(url, out)
    assert error.value.code == "source_not_supported"


async def test_a_redirect_from_https_to_http_is_refused() -> None:
    async with await SourceClient("https://store.example/legal")() as client:
        with pytest.raises(aiohttp.ClientOSError, match="leads to http"):
            await client.get("http://store.example/legal")


@pytest.mark.parametrize("url", ["https://store.example/a::file:///etc", "memory://a::file:///etc/passwd"])
def test_an_address_in_another_is_refused(out: Path, url: str) -> None:
    with pytest.raises(BadRequest, match="write a single one"):
        fetch(url, out)


def test_a_scheme_whose_package_is_not_installed_names_it(out: Path) -> None:
    for scheme, package in (("s3", "s3fs"), ("gs", "gcsfs")):
        if package in fsspec.available_protocols():
            continue
        with pytest.raises(BadRequest, match=f"install {package}") as error:
            fetch(f"{scheme}://bucket/legal", out)
        assert error.value.code == "source_not_supported"


def test_no_archive_is_stored_by_a_name_that_leaves_its_folder() -> None:
    for url in ("https://a/..?get=legal.tar.gz", "https://a/?get=b/legal.tar.gz"):
        assert remote._archive_name(url).endswith("legal.tar.gz")
        assert "/" not in remote._archive_name(url)


@pytest.mark.parametrize(
    "name",
    [
        "legal",
        "legal.tar.gz",
        "legal.tar.gz/",
        "legal.tar.gz?X-Amz-Signature=5d/e",
        f"legal.tar.gz?as={'x' * 300}.zip",
        "latest?get=legal.tar.gz",
    ],
)
async def test_a_fetched_adapter_is_registered_like_any_other(site: str, rig: Rig, name: str) -> None:
    done = await rig.service.register("legal", rig.base, UrlSource(url=f"{site}/{name}"))
    address, query, _ = f"{site}/{name}".partition("?")
    assert done.version.source == (f"{address}?…" if query else address), "a query may hold a signature or a token"
    assert not list(rig.service.incoming.iterdir())
    assert remote.is_archive(name) is (name != "legal")


def test_an_abandoned_download_ends_and_removes_its_folder(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()

    def blocks(*_: Any) -> Iterator[bytes]:
        while len(read) < 1000:
            read.append(1)
            yield b"x"
            shutil.rmtree(out, ignore_errors=True)

    monkeypatch.setattr(remote, "_blocks", blocks)
    monkeypatch.setattr(fsspec.implementations.http.HTTPFileSystem, "info", lambda *_: {"size": 1000})
    with pytest.raises(FileNotFoundError):
        fetch("https://adapters.example/legal.tar.gz", out)
    assert len(read) == 2
