"""`client.files` of OpenAI's SDK against our Files. Each answer is checked against its types."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from openai.types import FileDeleted, FileObject

from batches.files import FileTable
from batches.intake.stored_files import NewFile
from batches.records import BatchState
from registry.base.turns import FairTurns
from registry.errors import Unavailable
from registry.storage.reserve import DiskReserve
from runtime.http.batches.lines import batch_worker
from tests.fakes.multipart import HEADERS, part
from tests.system.vendor.strict import faults
from tests.unit.disks import mount_small
from tests.unit.http.batches.conftest import URL, BatchServer, jsonl
from tests.unit.http.fakes import Wire

FORM = {"purpose": "batch"}


async def test_a_file_is_returned_as_it_was_sent(served: BatchServer) -> None:
    content = jsonl("a", "b")
    made = await served.upload(content)
    assert faults(FileObject, served.raw[-1]) == []
    assert (made.bytes, made.filename, made.purpose, made.status) == (len(content), "in.jsonl", "batch", "processed")
    assert made.expires_at == pytest.approx(made.created_at + 30 * 86_400, abs=1)
    assert await served.client.files.wait_for_processing(made.id) == made
    assert await served.client.files.retrieve(made.id) == made
    answer = await served.client.files.content(made.id)
    assert answer.content == content
    assert answer.response.headers["content-type"] == "application/jsonl"


async def test_a_file_may_have_another_expiry(served: BatchServer) -> None:
    made = await served.client.files.create(
        file=("in.jsonl", jsonl("a")), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at == pytest.approx(made.created_at + 3600, abs=1)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 5000}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "-1"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "\u0663"}, "expires_after[seconds]"),
        ({"purpose": "assistants"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"model": "x"}, "model"),
    ],
    ids=range(9),
)
async def test_wrong_fields_are_refused(served: BatchServer, changes: dict[str, str], param: str) -> None:
    answer = await served.http.post(
        "/v1/files", data={**FORM, **changes}, files={"file": ("in.jsonl", jsonl("a"))}
    )  # fmt: skip
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert await _nothing_is_stored(served)


async def test_the_purpose_may_come_after_the_file(served: BatchServer) -> None:
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="C:\\\\dir\\\\in.jsonl"\r\n\r\n',
        jsonl("a"),
        b'\r\n--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n',
    ]
    answer = await served.http.post(
        "/v1/files", content=b"".join(parts), headers={"Content-Type": "multipart/form-data; boundary=x"}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["filename"] == "in.jsonl"


@pytest.mark.parametrize(
    "files",
    [
        [],
        [("file", ("in.jsonl", b""))],
        [("file", ("a.jsonl", jsonl("a"))), ("file", ("b.jsonl", jsonl("b")))],
        [("file", ("in.txt", jsonl("a")))],
        [("file", ("in.json", jsonl("a")))],
    ],
    ids=["none", "empty", "two", "txt", "json"],
)
async def test_a_form_without_exactly_one_file_is_refused(served: BatchServer, files: Any) -> None:
    answer = await served.http.post(
        "/v1/files", data=FORM, files=files or [("other", (None, b"x"))]
    )  # fmt: skip
    assert answer.status_code == 400, answer.text
    assert await _nothing_is_stored(served)


async def test_a_file_without_a_purpose_is_refused(served: BatchServer) -> None:
    answer = await served.http.post("/v1/files", files={"file": ("in.jsonl", jsonl("a"))})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "purpose")


async def test_a_file_with_faults_is_stored_with_the_first_fault(served: BatchServer) -> None:
    made = await served.upload(jsonl("a") + b"{\n" + jsonl("a"))
    assert faults(FileObject, served.raw[-1]) == []
    assert made.status == "error"
    assert made.status_details.startswith("Line 2: ")
    assert made.status_details.endswith("(2 faults in all)")
    assert (await served.client.files.wait_for_processing(made.id)).status == "error"


async def test_files_of_other_purposes_are_not_checked(served: BatchServer) -> None:
    made = await served.upload(b"\x00\xff", "notes.bin", "user_data")
    assert made.status == "processed"
    answer = await served.client.files.content(made.id)
    assert (answer.content, answer.response.headers["content-type"]) == (b"\x00\xff", "application/octet-stream")


async def test_a_deleted_file_is_removed_completely(served: BatchServer) -> None:
    made = await served.upload(jsonl("a"))
    deleted = await served.client.files.delete(made.id)
    assert faults(FileDeleted, served.raw[-1]) == []
    assert deleted.deleted
    for call in (served.client.files.retrieve, served.client.files.content, served.client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            await call(made.id)
        assert caught.value.code == "file_not_found"
    assert await _nothing_is_stored(served)


@pytest.mark.parametrize("name", ["file-none", "file-00-output", "file-00-errors", "..%2f..%2fetc", "x" * 120])
async def test_unknown_files_are_a_404(served: BatchServer, name: str) -> None:
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = await served.http.request(method, f"/v1/files/{name}{path}")
        assert answer.status_code == 404, answer.text


async def test_reading_creates_no_database(served: BatchServer) -> None:
    assert (await served.client.files.list()).data == []
    assert (await served.client.batches.list()).data == []
    assert served.ledger.database is None
    with pytest.raises(openai.BadRequestError):
        await served.client.files.list(after="file-none")


async def test_files_are_listed_by_pages_in_both_orders(served: BatchServer) -> None:
    ids = [(await served.upload(jsonl("a"), f"{number}.jsonl")).id for number in range(7)]
    other = await served.upload(b"x", "x", "evals")
    newest = [file.id async for file in served.client.files.list(limit=2, purpose="batch")]
    assert newest == ids[::-1]
    assert served.raw[-1].keys() == {"object", "data", "first_id", "last_id", "has_more"}
    oldest = [file.id async for file in served.client.files.list(limit=3, order="asc")]
    assert oldest == [*ids, other.id]


async def test_a_repeated_upload_returns_the_same_file(served: BatchServer) -> None:
    again = {"extra_headers": {"Idempotency-Key": "k1"}}
    first = await served.client.files.create(file=("in.jsonl", jsonl("a")), purpose="batch", **again)
    second = await served.client.files.create(file=("in.jsonl", jsonl("a")), purpose="batch", **again)
    assert second == first
    assert len((await served.client.files.list()).data) == 1
    with pytest.raises(openai.ConflictError) as caught:
        await served.client.files.create(file=("in.jsonl", jsonl("b")), purpose="batch", **again)
    assert caught.value.code == "idempotency_conflict"
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_a_file_over_the_size_is_refused_while_it_arrives(tmp_path: Path) -> None:
    served = BatchServer(tmp_path, max_file=4096)
    with pytest.raises(openai.APIStatusError) as caught:
        await served.upload(jsonl(*map(str, range(200))))
    assert caught.value.status_code == 413
    assert await _nothing_is_stored(served)
    await served.close()


async def test_all_files_together_are_bounded(tmp_path: Path) -> None:
    served = BatchServer(tmp_path, files_disk=2**20)
    first = await served.upload(bytes(700_000), "a", "user_data")
    with pytest.raises(openai.InternalServerError) as caught:
        await served.upload(bytes(700_000), "b", "user_data")
    assert (caught.value.status_code, caught.value.code) == (507, "storage_full")
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert [file.id for file in (await served.client.files.list()).data] == [first.id]
    assert len(_stored(served)) == 1
    await served.client.files.delete(first.id)
    await served.upload(bytes(700_000), "b", "user_data")
    await served.close()


async def test_one_team_leaves_room_for_the_files_of_others(tmp_path: Path) -> None:
    served = BatchServer(tmp_path, files_disk=2**20, max_file=300_000)
    first, second = [await served.upload(bytes(300_000), name, "user_data") for name in "ab"]
    with pytest.raises(openai.InternalServerError, match=r"Your team's files take .* of the 768\.0 KiB") as caught:
        await served.upload(bytes(200_000), "c", "user_data")
    assert (caught.value.status_code, caught.value.code) == (507, "storage_full")
    assert caught.value.response.headers["x-should-retry"] == "false"
    body = tmp_path / "body"
    body.write_bytes(bytes(300_000))
    theirs = await served.batches.files.add(NewFile(team="theirs", name="c", purpose="user_data"), body, 300_000)
    assert {file.id for file in (await served.client.files.list()).data} == {first.id, second.id}
    assert len(_stored(served)) == 3
    await served.batches.files.delete("theirs", theirs.id)
    await served.client.files.delete(first.id)
    await served.upload(bytes(200_000), "c", "user_data")
    await served.close()


async def test_requests_in_a_batchs_body_count_for_its_team(tmp_path: Path) -> None:
    served = BatchServer(tmp_path, files_disk=2**20, max_file=300_000)
    for name in "ab":
        await served.upload(bytes(300_000), name, "user_data")
    answer = await served.http.post(
        "/v1/batch", json={"url": URL, "requests": [{"body": {"model": "chat", "messages": [], "user": "x" * 200_000}}]}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full"), answer.text
    await served.close()


async def test_each_check_of_an_input_takes_a_turn_of_its_team(
    served: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    teams, take = list[str](), FairTurns.take
    monkeypatch.setattr(FairTurns, "take", lambda turns, owner: (teams.append(owner), take(turns, owner))[1])
    await served.create(jsonl("a"))  # once when it is uploaded, once for the batch
    requests = [{"custom_id": "a", "body": {"model": "chat", "messages": []}}]
    answer = await served.http.post("/v1/batch", json={"url": URL, "requests": requests})
    assert answer.status_code == 200, answer.text
    assert teams == ["default"] * 4
    messages = [{"custom_id": "a", "params": {"model": "chat", "max_tokens": 1, "messages": []}}]
    answer = await served.http.post("/v1/messages/batches", json={"requests": messages})
    assert answer.status_code == 200, answer.text
    assert teams == ["default"] * 6
    await served.batches.creator.close()


async def test_a_disk_at_its_reserve_accepts_no_files(tmp_path: Path) -> None:
    served = BatchServer(tmp_path, disk_reserve=2**50)
    with pytest.raises(openai.InternalServerError) as caught:
        await served.upload(jsonl("a"))
    assert (caught.value.status_code, caught.value.code) == (507, "storage_full")
    assert await _nothing_is_stored(served)
    await served.close()


async def test_anthropics_files_are_not_served(served: BatchServer) -> None:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app=served.app))
    client = anthropic.AsyncAnthropic(api_key="x", base_url="http://test", max_retries=0)
    headers = {"anthropic-version": "2023-06-01"}
    for method, path in (("GET", ""), ("POST", ""), ("GET", "/file-1"), ("GET", "/file-1/content"), ("DELETE", "/f")):
        answer = await http.request(method, f"http://test/v1/files{path}", headers=headers)
        assert answer.status_code == 404
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "not_found_error"
    await client.close()
    await http.aclose()


async def test_a_large_file_is_not_read_into_memory(served: BatchServer) -> None:
    content = bytes(range(256)) * 40_000
    made = await served.upload(content, "big", "user_data")
    digest = hashlib.sha256()
    async with served.http.stream("GET", f"/v1/files/{made.id}/content") as answer:
        sizes = []
        async for part in answer.aiter_raw():
            digest.update(part)
            sizes.append(len(part))
    assert digest.digest() == hashlib.sha256(content).digest()


def _stored(served: BatchServer) -> list[Path]:
    folder = served.gateway.settings.data_dir / "files"
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


async def _nothing_is_stored(served: BatchServer) -> bool:
    return not _stored(served) and not (await served.client.files.list()).data


async def test_250_files_are_listed_by_pages_in_both_orders(served: BatchServer) -> None:
    ids = [(await served.upload(b"x", f"{number}", "user_data")).id for number in range(250)]
    assert [file.id async for file in served.client.files.list(limit=100)] == ids[::-1]
    assert [file.id async for file in served.client.files.list(limit=100, order="asc")] == ids
    assert len((await served.client.files.list()).data) == 250


async def test_an_upload_that_fills_the_disk_leaves_nothing(tmp_path: Path) -> None:
    with mount_small(tmp_path / "small", "16m") as folder:
        served = BatchServer(folder)
        first = await served.upload(jsonl("a"))
        with pytest.raises(openai.InternalServerError) as caught:
            await served.upload(bytes(30 << 20), "large", "user_data")
        assert (caught.value.status_code, caught.value.code) == (507, "storage_full")
        assert [path.name for path in _stored(served)] == [first.id]
        assert [file.id async for file in served.client.files.list()] == [first.id]
        answer = await served.http.post(
            "/v1/batch", content=b" " * (30 << 20), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 507
        assert [path.name for path in _stored(served)] == [first.id]
        await served.close()


async def test_a_disk_at_its_reserve_accepts_no_batches_and_runs_no_lines(
    served: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file can be used for any number of batches, whose lines and answers are in the ledger's database."""
    file = await served.upload(jsonl("a"))
    made = await served.client.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h")
    await served.reach(made.id, BatchState.IN_PROGRESS)
    worker = batch_worker(served.gateway.gateway)
    served.gateway.gateway.phase = "ready"
    assert worker._is_open()
    with monkeypatch.context() as patch:
        patch.setattr(DiskReserve, "is_short", True)
        assert not worker._is_open(), "no line is claimed"
        with pytest.raises(openai.InternalServerError) as caught:
            await served.client.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h")
        assert (caught.value.status_code, caught.value.code) == (503, "storage_full")
        assert "reserve" in served.raw[-1]["error"]["message"]
        await served.client.batches.retrieve(made.id)
        assert "reserve" in served.raw[-1]["roundhouse"]["waits"]
    assert len((await served.client.batches.list()).data) == 1
    assert worker._is_open()


@pytest.mark.parametrize("last", ["make_private", "receive"])
async def test_a_disk_that_has_become_read_only_is_named(
    served: BatchServer, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Even removing a file that does not exist fails there."""

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        if last == "make_private":
            for module in ("files", "incoming"):
                patch.setattr(f"runtime.http.batches.{module}.make_private", read_only)
        patch.setattr("runtime.http.upload._create", read_only)
        patch.setattr(Path, "unlink", read_only)
        with pytest.raises(openai.InternalServerError) as caught:
            await served.upload(jsonl("a"))
        requests = [{"custom_id": "a", "body": {"model": "chat", "messages": []}}]
        inline = await served.http.post("/v1/batch", json={"url": URL, "requests": requests})
    assert (caught.value.status_code, caught.value.code) == (507, "storage_full")
    assert "Read-only file system" in caught.value.message
    assert (inline.status_code, inline.json()["error"]["code"]) == (507, "storage_full")
    assert await _nothing_is_stored(served)


async def test_a_failing_store_leaves_neither_row_nor_bytes(
    served: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.upload(jsonl("a"))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def unavailable(*_: Any) -> None:
        raise Unavailable("The database does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(openai.InternalServerError) as caught:
            await served.upload(jsonl("b"))
    assert (caught.value.status_code, caught.value.code) == (507, "storage_full")
    with monkeypatch.context() as patch:
        patch.setattr(FileTable, "create", unavailable)
        with pytest.raises(openai.InternalServerError) as failed:
            await served.upload(jsonl("b"))
    assert failed.value.status_code == 503
    assert len(_stored(served)) == len((await served.client.files.list()).data) == 1


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/v1/files", HEADERS, part("purpose", b"batch") + part("file", b"a line", "in.jsonl")[:60]),
        ("/v1/batch", {"content-type": "application/json"}, b'{"url": "/v1/chat/comp'),
        ("/v1/messages/batches", {"content-type": "application/json"}, b'{"requests": ['),
    ],
)
async def test_a_client_that_leaves_during_its_upload_leaves_no_file(
    served: BatchServer, caplog: pytest.LogCaptureFixture, path: str, headers: dict[str, str], body: bytes
) -> None:
    wire = Wire(served.app, path, [body], headers)
    wire.complete = False
    wire.leave.set()
    await wire.run()
    assert [message["status"] for message in wire.sent if message["type"] == "http.response.start"] == [499]
    assert not list(served.batches.incoming.glob("*"))
    assert not caplog.records
