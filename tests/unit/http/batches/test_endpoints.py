"""`client.batches` of OpenAI's SDK against our Batches. Each answer is checked against its types."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch, FileObject

from batches import service
from batches.content.folder import FolderBytes
from batches.intake import creation
from batches.output import render_line
from batches.records import BatchState, Line, LineState
from batches.service import OUTPUT_SECONDS
from registry.errors import FinalConflict
from runtime.http.batches import reading
from tenants.limits.records import Kind, Limit
from tests.system.vendor.strict import faults
from tests.unit.http.batches.conftest import BODY, URL, BatchServer, answered, jsonl, refused


async def test_a_batch_from_creation_to_its_files(served: BatchServer) -> None:
    made = await served.create(jsonl("c", "a", "b"), metadata={"job": "nightly"})
    assert faults(Batch, strict(served.raw[-1])) == []
    assert (made.endpoint, made.metadata) == (URL, {"job": "nightly"})
    assert made.status in ("validating", "in_progress")
    assert made.expires_at == made.created_at + 86_400
    assert (made.output_file_id, made.error_file_id) == (None, None)
    await served.work(made.id, lambda number: refused(number) if number == 1 else answered(number), most=2)
    running = await served.client.batches.retrieve(made.id)
    assert faults(Batch, strict(served.raw[-1])) == []
    assert (running.status, running.output_file_id, running.error_file_id) == ("in_progress", None, None)
    assert (running.request_counts.total, running.request_counts.completed, running.request_counts.failed) == (3, 1, 1)
    await served.work(made.id, answered)
    done = await served.client.batches.retrieve(made.id)
    assert faults(Batch, strict(served.raw[-1])) == []
    assert done.status == "completed"
    assert done.completed_at is not None
    assert done.usage.input_tokens == 6
    assert done.usage.input_tokens_details.cached_tokens == 2
    assert done.usage.total_tokens == 10
    output = await read_lines(served, done.output_file_id)
    assert [line["custom_id"] for line in output] == ["c", "b"]
    assert output[0]["response"]["body"] == {"number": 0}
    errors = await read_lines(served, done.error_file_id)
    assert [line["custom_id"] for line in errors] == ["a"]
    assert (errors[0]["response"]["status_code"], errors[0]["error"]) == (404, None)
    assert errors[0]["response"]["body"]["error"]["code"] == "model_not_found"


async def test_a_batch_says_that_its_database_cannot_be_written(
    served: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await served.create(jsonl("a", "b"))
    await served.work(made.id, answered, most=1)
    monkeypatch.setattr(served.batches, "_is_unwritten", lambda: True)
    await served.client.batches.retrieve(made.id)
    assert "accepts no rows now" in served.raw[-1]["roundhouse"]["waits"]
    until = time.time() + 60
    await served.batches.store.write(lambda tables: tables.batches.wait([made.id], "The budget is spent.", until))
    assert [(one.waits, one.waits_until) for one in await served.batches.recent(None, 5)] == [(service.UNWRITTEN, None)]
    await served.client.batches.list()
    assert "accepts no rows now" in served.raw[-1]["data"][0]["roundhouse"]["waits"]
    monkeypatch.setattr(served.batches, "_is_unwritten", lambda: False)
    await served.work(made.id, answered)
    await served.client.batches.retrieve(made.id)
    assert "waits" not in served.raw[-1]["roundhouse"]


async def read_lines(served: BatchServer, id_: str) -> list[Any]:
    """Return the lines of an output file; check that its object has their size."""
    answer = await served.client.files.content(id_)
    assert answer.response.headers["content-type"] == "application/jsonl"
    file = await served.client.files.retrieve(id_)
    assert faults(FileObject, served.raw[-1]) == []
    assert (file.id, file.bytes, file.purpose) == (id_, len(answer.content), "batch_output")
    return [json.loads(line) for line in answer.content.splitlines()]


def strict(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the object without our field and without nulls, about which the SDK's types say nothing."""
    assert raw["roundhouse"] is not None
    found: dict[str, Any] = without_nulls({**raw, "roundhouse": None})
    return found


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


async def test_all_failed_means_no_output_file(served: BatchServer) -> None:
    made = await served.create(jsonl("a", "b"))
    await served.work(made.id, refused)
    done = await served.client.batches.retrieve(made.id)
    assert (done.status, done.output_file_id) == ("completed", None)
    assert len(await read_lines(served, done.error_file_id)) == 2
    for kind in ("output", "none"):
        with pytest.raises(openai.NotFoundError):
            await served.client.files.content(f"file-{made.id.removeprefix('batch_')}-{kind}")


async def test_all_succeeded_means_no_error_file(served: BatchServer) -> None:
    made = await served.create(jsonl("a", "b"))
    await served.work(made.id, answered)
    done = await served.client.batches.retrieve(made.id)
    assert (done.status, done.error_file_id) == ("completed", None)
    assert len(await read_lines(served, done.output_file_id)) == 2


async def test_there_is_no_output_file_before_the_end(served: BatchServer) -> None:
    made = await served.create(jsonl("a", "b"))
    await served.work(made.id, answered, most=1)
    with pytest.raises(openai.NotFoundError):
        await served.client.files.content(f"file-{made.id.removeprefix('batch_')}-output")


@pytest.mark.parametrize(
    ("content", "codes"),
    [
        (jsonl("a") + b"{\n", [("invalid_json_line", 2)]),
        (jsonl("a", "b", "a"), [("duplicate_custom_id", 3)]),
        (jsonl("a") + jsonl("b", url="/v1/embeddings"), [("url_mismatch", 2)]),
        (b"\n\n", [("empty_file", None)]),
        (b"{" * 10 + b"\n" + b'{"custom_id":"a"}', [("invalid_json_line", 1), ("missing_required_parameter", 2)]),
    ],
    ids=range(5),
)
async def test_faults_of_the_file_fail_the_batch_but_not_the_call(
    served: BatchServer, content: bytes, codes: list[tuple[str, int | None]]
) -> None:
    made = await served.create(content)
    assert made.status in ("validating", "failed")
    await served.reach(made.id, BatchState.FAILED)
    failed = await served.client.batches.retrieve(made.id)
    assert faults(Batch, strict(served.raw[-1])) == []
    assert [(fault.code, fault.line) for fault in failed.errors.data] == codes
    assert failed.failed_at is not None
    assert (failed.request_counts.total, failed.output_file_id, failed.error_file_id) == (0, None, None)


async def test_the_first_hundred_faults_and_the_number_of_others_are_reported(served: BatchServer) -> None:
    made = await served.create(b"{\n" * 130)
    await served.reach(made.id, BatchState.FAILED)
    failed = await served.client.batches.retrieve(made.id)
    assert len(failed.errors.data) == 100
    assert served.raw[-1]["roundhouse"]["more_errors"] == 30


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"completion_window": "25"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "169h"}, "completion_window"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"x" * 65: "x"}}, None),
        ({"metadata": {"x": "x" * 513}}, "metadata.x"),
        ({"extra_body": {"stream": True}}, "stream"),
    ],
    ids=range(9),
)
async def test_faulty_bodies_are_refused(served: BatchServer, changes: dict[str, Any], param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await served.create(jsonl("a"), **changes)
    if param is not None:
        assert caught.value.param == param
    assert (await served.client.batches.list()).data == []


@pytest.mark.parametrize("window", ["1h", "168h"])
async def test_other_windows_than_24_hours_are_accepted(served: BatchServer, window: Any) -> None:
    made = await served.create(jsonl("a"), completion_window=window)
    assert made.completion_window == window
    assert made.expires_at == made.created_at + 3600 * int(window[:-1])


async def test_a_missing_file_or_one_of_another_purpose_is_refused(served: BatchServer) -> None:
    more: dict[str, Any] = {"endpoint": URL, "completion_window": "24h"}
    with pytest.raises(openai.NotFoundError) as missing:
        await served.client.batches.create(input_file_id="file-none", **more)
    assert missing.value.param == "input_file_id"
    gone = await served.upload(jsonl("a"))
    await served.client.files.delete(gone.id)
    with pytest.raises(openai.NotFoundError):
        await served.client.batches.create(input_file_id=gone.id, **more)
    other = await served.upload(jsonl("a"), "a.jsonl", "user_data")
    with pytest.raises(openai.BadRequestError) as wrong:
        await served.client.batches.create(input_file_id=other.id, **more)
    assert wrong.value.code == "wrong_purpose"


async def test_a_repeated_creation_returns_the_same_batch(served: BatchServer) -> None:
    file = await served.upload(jsonl("a"))
    more: Any = {"endpoint": URL, "completion_window": "24h", "extra_headers": {"Idempotency-Key": "k"}}
    first, second = await asyncio.gather(
        *(served.client.batches.create(input_file_id=file.id, **more) for _ in range(2))
    )
    assert first.id == second.id
    with pytest.raises(openai.ConflictError) as caught:
        await served.client.batches.create(input_file_id=file.id, metadata={"other": "1"}, **more)
    assert caught.value.code == "idempotency_conflict"
    assert caught.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.BadRequestError):
        await served.client.batches.create(
            input_file_id=file.id, **(more | {"extra_headers": {"Idempotency-Key": "k" * 256}})
        )
    await served.client.files.delete(file.id)
    again = await served.client.batches.create(input_file_id=file.id, **more)
    assert again.id == first.id, "also after its file was deleted"


async def test_a_batch_is_cancelled(served: BatchServer) -> None:
    made = await served.create(jsonl("a", "b", "c"))
    await served.work(made.id, answered, most=1)
    cancelling = await served.client.batches.cancel(made.id)
    assert faults(Batch, strict(served.raw[-1])) == []
    assert cancelling.status == "cancelling"
    assert cancelling.cancelling_at is not None
    assert (await served.client.batches.cancel(made.id)).status == "cancelling"
    await served.batches.store.write(lambda tables: tables.lines.drop(made.id, LineState.CANCELLED, 60.0))
    done = await served.client.batches.retrieve(made.id)
    assert (done.status, done.cancelled_at) == ("cancelled", 60)
    assert [line["custom_id"] for line in await read_lines(served, done.output_file_id)] == ["a"]
    errors = await read_lines(served, done.error_file_id)
    assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [
        ("b", "batch_cancelled"),
        ("c", "batch_cancelled"),
    ]
    with pytest.raises(openai.ConflictError) as caught:
        await served.client.batches.cancel(made.id)
    assert caught.value.code == "batch_ended"
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_expired_lines_are_in_the_error_file(served: BatchServer) -> None:
    made = await served.create(jsonl("a", "b"))
    await served.work(made.id, answered, most=1)
    await served.batches.store.write(lambda tables: tables.lines.drop(made.id, LineState.EXPIRED, 60.0))
    done = await served.client.batches.retrieve(made.id)
    assert (done.status, done.expired_at) == ("expired", 60)
    assert len(await read_lines(served, done.output_file_id)) == 1
    assert [line["error"]["code"] for line in await read_lines(served, done.error_file_id)] == ["batch_expired"]


async def test_unknown_batches_are_a_404(served: BatchServer) -> None:
    for call in (served.client.batches.retrieve, served.client.batches.cancel):
        with pytest.raises(openai.NotFoundError) as caught:
            await call("batch_none")
        assert caught.value.code == "batch_not_found"


async def test_many_batches_are_listed_by_pages(served: BatchServer) -> None:
    file = await served.upload(jsonl("a"))
    ids = []
    for number in range(7):
        made = await served.client.batches.create(
            input_file_id=file.id, endpoint=URL, completion_window="24h", metadata={"number": str(number)}
        )
        ids.append(made.id)
    assert [batch.id async for batch in served.client.batches.list(limit=2)] == ids[::-1]
    with pytest.raises(openai.BadRequestError):
        await served.client.batches.list(after="batch_none")


async def test_the_input_may_be_deleted_while_the_batch_runs(served: BatchServer) -> None:
    made = await served.create(jsonl("a", "b"))
    await served.reach(made.id, BatchState.IN_PROGRESS)
    await served.client.files.delete(made.input_file_id)
    with pytest.raises(openai.NotFoundError):
        await served.client.files.content(made.input_file_id)
    lines = await served.batches.store.read(lambda tables: tables.lines.waiting([made.id], 2e9))
    assert sum(group.count for group in lines) == 2
    assert served.batches.files.content().read(made.input_file_id, 0, 1) == b"{"
    await served.work(made.id, answered)
    assert await served.batches.files.sweep() == 1
    with pytest.raises(FileNotFoundError):
        served.batches.files.content().read(made.input_file_id, 0, 1)


async def test_the_size_of_an_output_file_is_read_once(served: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await served.create(jsonl("a", "b"))
    await served.work(made.id, answered)
    done = await served.client.batches.retrieve(made.id)
    content = await served.http.get(f"/v1/files/{done.output_file_id}/content")
    assert (await served.client.files.retrieve(done.output_file_id)).bytes == len(content.content)

    def rendered(*_: object) -> None:
        pytest.fail("its lines were read again")

    monkeypatch.setattr(reading, "rendered", rendered)
    assert (await served.client.files.retrieve(done.output_file_id)).bytes == len(content.content)


async def test_parts_of_an_output_file_do_not_read_the_whole_file(
    served: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await served.create(jsonl("a", "b", "c"))
    await served.work(made.id, answered)
    done = await served.client.batches.retrieve(made.id)
    path = f"/v1/files/{done.output_file_id}/content"
    content = (await served.http.get(path)).content
    lines = list[object]()

    def render(line: Line) -> bytes | None:
        lines.append(line)
        return render_line(line)

    monkeypatch.setattr(reading, "PAGE_LINES", 1)
    monkeypatch.setattr(reading, "render_line", render)
    for start in range(3):
        part = await served.http.get(path, headers={"range": f"bytes={start}-{start + 4}"})
        assert part.status_code == 206
        assert part.content == content[start : start + 5]
    assert len(lines) == 3 + 3, "all lines once for the size, and then the first line for each part"


async def test_a_deleted_output_file_is_not_found(served: BatchServer) -> None:
    made = await served.create(jsonl("a", "b"))
    await served.work(made.id, lambda number: answered(number) if number else refused(number))
    done = await served.client.batches.retrieve(made.id)
    assert (await served.client.files.delete(done.output_file_id)).deleted
    for call in (served.client.files.retrieve, served.client.files.content, served.client.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call(done.output_file_id)
    assert len(await read_lines(served, done.error_file_id)) == 1


async def test_a_validation_ended_by_a_crash_is_repeated(served: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FORECAST_SECONDS", 0.0)
    made = await served.create(jsonl(*map(str, range(2500))))
    await served.batches.creator.close()
    assert (await served.client.batches.retrieve(made.id)).status == "validating"
    assert await served.batches.creator.resume() == 1
    assert await served.batches.creator.resume() == 0
    batch = await served.reach(made.id, BatchState.IN_PROGRESS)
    assert batch.counts.total == 2500
    lines = await served.batches.store.read(lambda tables: tables.lines.waiting([made.id], 2e9))
    assert sum(group.count for group in lines) == 2500


async def test_a_batchs_input_is_opened_outside_the_event_loop(
    served: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying the input from a database must not block streams."""
    opened, local_path = list[bool](), FolderBytes.local_path

    @contextmanager
    def note(self: FolderBytes, file_id: str) -> Iterator[Path]:
        opened.append(threading.current_thread() is threading.main_thread())
        with local_path(self, file_id) as path:
            yield path

    monkeypatch.setattr(FolderBytes, "local_path", note)
    made = await served.create(jsonl("a"))
    await served.reach(made.id, BatchState.IN_PROGRESS)
    assert opened == [False]


async def test_a_line_has_the_offset_of_its_body(served: BatchServer) -> None:
    made = await served.create(b"\xef\xbb\xbf" + jsonl("a") + b"\r\n" + jsonl("b", body={**BODY, "n": 1}))
    await served.reach(made.id, BatchState.IN_PROGRESS)
    epoch, _ = await served.batches.store.write(lambda tables: tables.runners.open(alone=True))
    lines = await served.batches.store.write(lambda tables: tables.lines.claim(epoch, made.id, "chat", 10, 2e9))
    content = served.batches.files.content()
    bodies = [json.loads(content.read(made.input_file_id, line.offset, line.length)) for line in lines]
    assert bodies == [BODY, {**BODY, "n": 1}]


async def test_unfinished_batches_of_a_team_are_bounded(served: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert creation.UNFINISHED == 100
    monkeypatch.setattr(creation, "UNFINISHED", 3)
    file = await served.upload(jsonl("a"))
    more: Any = {"input_file_id": file.id, "endpoint": URL, "completion_window": "24h"}
    first = await served.client.batches.create(**more, extra_headers={"Idempotency-Key": "first"})
    for _ in range(2):
        await served.client.batches.create(**more)
    for headers in ({}, {"Idempotency-Key": "new"}):
        with pytest.raises(openai.RateLimitError) as caught:
            await served.client.batches.create(**more, extra_headers=headers)
        assert caught.value.code == "too_many_batches"
    assert (await served.client.batches.create(**more, extra_headers={"Idempotency-Key": "first"})).id == first.id


async def test_texts_are_not_logged(served: BatchServer, caplog: pytest.LogCaptureFixture) -> None:
    secret = "the word is swordfish"
    made = await served.create(jsonl("a", body={**BODY, "note": secret}) + secret.encode())
    await served.reach(made.id, BatchState.FAILED)
    assert "swordfish" not in caplog.text
    assert "swordfish" not in json.dumps(served.raw)


async def test_a_running_batch_cannot_be_deleted(served: BatchServer) -> None:
    made = await served.create(jsonl("a"))
    with pytest.raises(FinalConflict) as caught:
        await served.batches.delete("default", made.id)
    assert caught.value.code == "batch_running"
    await served.work(made.id, answered)
    await served.batches.delete("default", made.id)
    with pytest.raises(openai.NotFoundError):
        await served.client.batches.retrieve(made.id)


async def test_answers_are_removed_though_another_step_of_the_round_fails(
    served: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise OSError("the disk is gone")

    made = await served.create(jsonl("a"))
    await served.work(made.id, answered)
    done = await served.client.batches.retrieve(made.id)
    monkeypatch.setattr("batches.service.OUTPUT_SECONDS", -60)
    monkeypatch.setattr(served.batches.files, "sweep", broken)
    with pytest.raises(ExceptionGroup) as failed:
        await served.batches._sweep()
    assert [str(error) for error in failed.value.exceptions] == ["the disk is gone"]
    assert done.output_file_id is not None
    with pytest.raises(openai.NotFoundError):
        await served.client.files.content(done.output_file_id)


async def test_answers_are_removed_when_they_expire(served: BatchServer) -> None:
    made = await served.create(jsonl("a", "b"))
    await served.work(made.id, lambda number: answered(number) if number else refused(number))
    running = await served.create(jsonl("c"))
    await served.reach(running.id, BatchState.IN_PROGRESS)
    done = await served.client.batches.retrieve(made.id)
    assert done.completed_at is not None
    end = done.completed_at + OUTPUT_SECONDS
    assert await served.batches.remove_old(end) == 0
    assert await served.batches.remove_old(end + 1) == 1
    assert await served.batches.remove_old(end + 1) == 0
    for id_ in (done.output_file_id, done.error_file_id):
        with pytest.raises(openai.NotFoundError):
            await served.client.files.content(id_)
    assert (await served.client.batches.retrieve(running.id)).request_counts.total == 1


async def test_a_start_removes_leftovers_of_a_crash(served: BatchServer) -> None:
    file = await served.upload(jsonl("a"))
    (served.batches.incoming / "half").write_bytes(b"x")
    (served.batches.incoming.parent / "file-00").write_bytes(b"x")
    await served.batches.open()
    assert not list(served.batches.incoming.iterdir())
    assert [path.name for path in served.batches.incoming.parent.iterdir() if path.is_file()] == [file.id]


RANGES = ["bytes=0-0", "bytes=3-10", "bytes=5-", "bytes=-7", "bytes=10-99999", "bytes=0-", "bytes=-99999"]


@pytest.mark.parametrize("part", RANGES)
async def test_a_range_of_a_file_is_returned(served: BatchServer, part: str) -> None:
    made = await served.create(jsonl("a", "b", "c"))
    await served.work(made.id, answered)
    done = await served.client.batches.retrieve(made.id)
    for id_ in (done.input_file_id, done.output_file_id):
        whole = (await served.http.get(f"/v1/files/{id_}/content")).content
        answer = await served.http.get(f"/v1/files/{id_}/content", headers={"Range": part})
        first, last = part.removeprefix("bytes=").split("-")
        expected = whole[int(first) : int(last) + 1 if last else None] if first else whole[-int(last) :]
        assert (answer.status_code, answer.content) == (206, expected)
        start = whole.index(expected) if first else len(whole) - len(expected)
        assert answer.headers["content-range"] == f"bytes {start}-{start + len(expected) - 1}/{len(whole)}"


@pytest.mark.parametrize("part", ["bytes=5-2", "bytes=99999-", "bytes=-", "bytes=0-1,3-4", "lines=0-1", "bytes=a-b"])
async def test_an_unsatisfiable_range_returns_the_whole_file(served: BatchServer, part: str) -> None:
    file = await served.upload(jsonl("a"))
    answer = await served.http.get(f"/v1/files/{file.id}/content", headers={"Range": part})
    assert (answer.status_code, answer.content) == (200, jsonl("a"))


async def test_tokens_of_a_teams_unfinished_batches_are_limited(served: BatchServer) -> None:
    """They are estimated from the bodies, and released as lines end."""
    size = len(json.dumps(BODY))
    tokens = -(-2 * size // 4)
    limit = Limit("lim_1", "team", "default", Kind.BATCH_TOKENS, 2 * tokens)
    served.gateway.queue_limiter.replace([limit])
    first = await served.create(jsonl("a", "b"))
    assert dict((await served.reach(first.id, BatchState.IN_PROGRESS)).queued) == {"chat": tokens}
    await served.reach((await served.create(jsonl("a", "b"))).id, BatchState.IN_PROGRESS)
    third = await served.create(jsonl("a", "b"))
    await served.reach(third.id, BatchState.FAILED)
    failed = await served.client.batches.retrieve(third.id)
    [fault] = failed.errors.data
    assert fault.code == "token_limit_exceeded"
    assert "batch tokens queued of team 'default'" in str(fault.message)
    assert await served.batches.store.read(lambda tables: tables.lines.waiting([third.id], 2e9)) == []
    await served.work(first.id, answered, most=1)
    await served.reach((await served.create(jsonl("a"))).id, BatchState.IN_PROGRESS)
    served.gateway.queue_limiter.replace([])
    await served.reach((await served.create(jsonl(*map(str, range(50))))).id, BatchState.IN_PROGRESS)
