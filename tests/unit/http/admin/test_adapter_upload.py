"""Adapters as multipart uploads: streamed to disk, capped while they arrive, and refused early by their fields."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from adapters.types import Base, CheckedAdapter, UploadedArchive
from registry.bounds import Bounds
from registry.recipes.definition import Recipe
from registry.records import Adapter, RegisteredVersion
from tenants.limits.records import Kind, Limit, Mode
from tests.fakes.multipart import END, HEADERS, part
from tests.unit.http.fakes import FakeGateway, Wire, application
from tests.unit.registry.makers import adapter

PATH = "/v1/adapters?dry_run=true"
CHAT = {
    "id": "chat", "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"},
    "memory": {"adapters": {"device": 2, "host": 4}},
}  # fmt: skip


class Service:
    """Records uploads instead of checking them."""

    notes = SimpleNamespace(of=lambda digest: ())

    def __init__(self, incoming: Path) -> None:
        self.incoming, self.bounds = incoming, Bounds()
        self.seen: list[bytes] = []

    def list(self, base: str | None = None) -> "list[Adapter]":
        return []

    async def validate(self, base: Base, source: UploadedArchive, *, team: str, trusted: bool) -> CheckedAdapter:
        assert source.path.parent == self.incoming
        self.seen.append(source.path.read_bytes())
        return CheckedAdapter("sha256:" + "0" * 64, 8, 100)


@pytest.fixture
async def gateway(tmp_path: Path) -> FakeGateway:
    return FakeGateway(
        tmp_path, [Recipe.model_validate(CHAT)], service=Service(tmp_path / "incoming"), max_adapter=100_000
    )


NAME, BASE, FILE = part("name", b"tune"), part("base", b"chat"), part("file", b"an archive", "a.tar")


def nothing_left(gateway: FakeGateway) -> bool:
    return not list(Path(gateway.service.incoming).glob("*"))


@pytest.mark.parametrize("order", [(NAME, BASE, FILE), (FILE, NAME, BASE)], ids=["fields-first", "file-first"])
async def test_an_archive_reaches_the_check_and_is_removed_afterwards(
    order: tuple[bytes, ...], client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    answer = await client.post(PATH, content=b"".join(order) + END, headers=HEADERS)
    assert (answer.status_code, answer.json()["name"]) == (200, "tune"), answer.text
    assert gateway.service.seen == [b"an archive"]
    assert nothing_left(gateway)


async def test_alias_and_probe_are_fields(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    requested: list[Any] = []

    async def register(name: str, base: Base, source: UploadedArchive, *, probe: Any, accept: Any, **more: Any) -> Any:
        requested.append((name, base.id, source.path.read_bytes(), probe.prompt, probe.expected, *more.values()))
        made = adapter("chat", name, 1)
        return RegisteredVersion(made, made.current, True)

    gateway.service.register = register
    fields = part("alias", b"prod") + part("shared", b"true")
    fields += part("probe_prompt", b"hello") + part("probe_expected", "HÉ".encode())
    answer = await client.post("/v1/adapters", content=NAME + BASE + fields + FILE + END, headers=HEADERS)
    assert answer.status_code == 201, answer.text
    assert requested == [("tune", "chat", b"an archive", "hello", "HÉ", "prod", "default", True, True)]


def limit(kind: Kind, amount: int, mode: Mode = Mode.ENFORCE) -> Limit:
    return Limit("lim_1", "team", "default", kind, amount, mode)


async def test_a_full_team_is_refused_before_its_upload(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.storage.replace([limit(Kind.ADAPTERS, 0)])
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield NAME + BASE + FILE[: FILE.index(b"an archive")]
        while sent < 100:
            sent += 1
            yield b"x" * 500

    answer = await client.post("/v1/adapters", content=endless(), headers=HEADERS)
    assert answer.status_code == 429, answer.text
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "storage_limit_exceeded")
    assert error["limits"] == [
        {
            "limit_id": "lim_1", "kind": "adapters_stored", "owner": "team", "subject": "default", "limit": 0,
            "remaining": 0, "seconds": None,
            "reason": "adapters stored of team 'default' is 0, of which 0 are used; this registration adds 1",
        }
    ]  # fmt: skip
    assert sent < 100
    assert gateway.service.seen == []
    assert nothing_left(gateway)


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.WARN])
async def test_a_teams_bytes_are_limited_once_they_are_known(
    client: httpx.AsyncClient, gateway: FakeGateway, mode: Mode
) -> None:
    async def register(name: str, base: Base, source: UploadedArchive, *, accept: Any, **_: Any) -> Any:
        accept(CheckedAdapter("sha256:" + "0" * 64, 8, 100))
        made = adapter("chat", name, 1)
        return RegisteredVersion(made, made.current, True)

    gateway.service.register = register
    gateway.storage.replace([limit(Kind.ADAPTER_BYTES, 99, mode)])
    answer = await client.post("/v1/adapters", content=NAME + BASE + FILE + END, headers=HEADERS)
    if mode is Mode.ENFORCE:
        assert answer.status_code == 429, answer.text
        assert "is 99, of which 0 are used; this registration adds 100" in answer.json()["error"]["message"]
    else:
        assert answer.status_code == 201, answer.text
        warning = answer.headers["x-roundhouse-limit-warning"]
        assert warning == "adapter bytes stored of team 'default': over 99"


async def test_an_archive_over_the_cap_is_cut_off_while_it_arrives(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield NAME + BASE + FILE[: FILE.index(b"an archive")]
        while sent < 100:
            sent += 1
            yield b"x" * 10_000

    answer = await client.post(PATH, content=endless(), headers=HEADERS)
    assert answer.status_code == 413, answer.text
    assert sent <= 12
    assert gateway.service.seen == []
    assert nothing_left(gateway)


async def test_a_wrong_base_or_field_is_refused_without_the_upload(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    for fields, status in ((NAME + part("base", b"none"), 404), (NAME + part("colour", b"red"), 400)):
        read: list[int] = []

        async def body(fields: bytes = fields, read: list[int] = read) -> AsyncIterator[bytes]:
            yield fields + FILE[:60]
            for number in range(100):
                read.append(number)
                yield b"x" * 500

        answer = await client.post(PATH, content=body(), headers=HEADERS)
        assert answer.status_code == status, answer.text
        assert not read
    assert nothing_left(gateway)


BAD: dict[str, tuple[bytes, str]] = {
    "no file": (NAME + BASE + END, "archive in the field 'file'"),
    "empty file": (NAME + BASE + part("file", b"", "a.tar") + END, "archive in the field 'file'"),
    "no name": (BASE + FILE + END, "'name' and 'base'"),
    "no base": (NAME + FILE + END, "'name' and 'base'"),
    "two files": (NAME + BASE + FILE + FILE + END, "one 'file'"),
    "name twice": (NAME + NAME + BASE + FILE + END, "once each"),
    "a bad name": (part("name", b"../x") + BASE + FILE + END, "name"),
    "half a probe": (NAME + BASE + part("probe_prompt", b"hi") + FILE + END, "probe.expected"),
    "an empty probe": (NAME + BASE + part("probe_prompt", b"") + part("probe_expected", b"x") + FILE + END, "prompt"),
    "a long probe": (
        NAME + BASE + part("probe_prompt", b"hi") + part("probe_expected", b"x" * 200) + FILE + END, "probe.expected",
    ),
    "another file": (NAME + BASE + part("weights", b"x", "w.bin") + FILE + END, "Only 'file'"),
    "cut off": (NAME + BASE + FILE, "closing boundary"),
    "no form": (b"hello", "cannot be read"),
    "not text": (part("name", b"\xff\xfe") + BASE + FILE + END, "UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
async def test_bad_forms_are_refused_and_leave_nothing(
    kind: str, client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    content, words = BAD[kind]
    answer = await client.post(PATH, content=content, headers=HEADERS)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"], answer.text
    assert gateway.service.seen == []
    assert nothing_left(gateway)


async def test_a_client_that_leaves_during_its_upload_leaves_no_file(gateway: FakeGateway) -> None:
    wire = Wire(application(gateway), "/v1/adapters", [NAME + BASE + FILE[:60]], HEADERS)
    wire.complete = False
    wire.leave.set()
    await wire.run()
    assert [message["status"] for message in wire.sent if message["type"] == "http.response.start"] == [499]
    assert nothing_left(gateway)
