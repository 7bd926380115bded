"""`client.messages.batches` of Anthropic's SDK against ours. Each answer is checked against its types."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types.messages import DeletedMessageBatch, MessageBatch

from batches.records import BatchState, LineEnd, LineState, LineUsage
from tests.system.vendor.strict import faults
from tests.unit.http.batches.conftest import BatchServer, jsonl

PARAMS: dict[str, Any] = {"model": "chat", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "chat", "content": [{"type": "text", "text": "ho"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 2},
}  # fmt: skip
REFUSED = {"type": "error", "error": {"type": "not_found_error", "message": "no"}}
PATH = "/v1/messages/batches"


def answered(_: int) -> LineEnd:
    return LineEnd(200, body=json.dumps(MESSAGE).encode(), request="req-1", usage=LineUsage(1, 0, 2, 0))


def refused(_: int) -> LineEnd:
    return LineEnd(404, code="model_not_found", body=json.dumps(REFUSED).encode(), request="req-1")


class MessageBatchServer(BatchServer):
    """A server and Anthropic's client `messages`."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app))
        http.event_hooks["response"].append(self._keep)
        self.messages = anthropic.AsyncAnthropic(
            api_key="x", base_url="http://test", http_client=http, max_retries=0
        ).messages.batches

    async def start(self, *custom_ids: str, **more: Any) -> Any:
        requests: Any = [{"custom_id": one, "params": PARAMS} for one in custom_ids]
        return await self.messages.create(requests=requests, **more)

    def check(self, kind: Any) -> dict[str, Any]:
        """Check the last answer strictly against a type, except for our own field and nulls."""
        raw = {name: value for name, value in self.raw[-1].items() if value is not None}
        raw.pop("roundhouse", None)
        assert faults(kind, raw) == []
        return raw


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[MessageBatchServer]:
    made = MessageBatchServer(tmp_path)
    yield made
    await made.close()


async def test_a_batch_from_creation_to_its_results(served: MessageBatchServer) -> None:
    made = await served.start("c", "a", "b")
    raw = served.check(MessageBatch)
    assert raw.keys() == {"id", "type", "processing_status", "request_counts", "created_at", "expires_at"}
    assert made.id.startswith("msgbatch_")
    assert (made.processing_status, made.request_counts.processing) == ("in_progress", 3)
    assert (made.expires_at - made.created_at).total_seconds() == 86_400
    await served.work(made.id, lambda number: refused(number) if number == 1 else answered(number), most=2)
    running = await served.messages.retrieve(made.id)
    assert running.request_counts.model_dump() == {
        "processing": 3, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0,
    }  # fmt: skip
    assert served.raw[-1]["roundhouse"]["progress"] == {"succeeded": 1, "errored": 1, "canceled": 0, "expired": 0}
    assert running.results_url is None
    with pytest.raises(anthropic.AnthropicError):
        await served.messages.results(made.id)
    await served.work(made.id, answered)
    done = await served.messages.retrieve(made.id)
    served.check(MessageBatch)
    assert (done.processing_status, done.ended_at is None) == ("ended", False)
    assert (done.request_counts.processing, done.request_counts.succeeded, done.request_counts.errored) == (0, 2, 1)
    assert done.results_url == f"{PATH}/{made.id}/results"
    results = [one async for one in await served.messages.results(made.id)]
    assert [(one.custom_id, one.result.type) for one in results] == [
        ("c", "succeeded"),
        ("a", "errored"),
        ("b", "succeeded"),
    ]
    assert results[0].result.message.content[0].text == "ho"
    assert results[1].result.error.error.type == "not_found_error"
    answer = await served.http.get(f"{PATH}/{made.id}/results")
    assert answer.headers["content-type"] == "application/x-jsonl"


async def test_the_url_of_results_has_the_clients_address_of_the_server(tmp_path: Path) -> None:
    served = MessageBatchServer(tmp_path, public_url="http://test/prefix/")
    made = await served.start("a")
    await served.work(made.id, answered)
    done = await served.messages.retrieve(made.id)
    assert done.results_url == f"http://test/prefix{PATH}/{made.id}/results"
    await served.close()


async def test_a_batch_is_cancelled(served: MessageBatchServer) -> None:
    made = await served.start("a", "b")
    await served.work(made.id, answered, most=1)
    canceling = await served.messages.cancel(made.id)
    served.check(MessageBatch)
    assert (canceling.processing_status, canceling.cancel_initiated_at is None) == ("canceling", False)
    with pytest.raises(anthropic.ConflictError) as running:
        await served.messages.delete(made.id)
    assert running.value.response.headers["x-should-retry"] == "false"
    await served.batches.store.write(lambda tables: tables.lines.drop(made.id, LineState.CANCELLED, time.time()))
    done = await served.messages.retrieve(made.id)
    assert (done.processing_status, done.request_counts.canceled) == ("ended", 1)
    results = [one async for one in await served.messages.results(made.id)]
    assert [one.result.type for one in results] == ["succeeded", "canceled"]
    with pytest.raises(anthropic.ConflictError) as ended:
        await served.messages.cancel(made.id)
    assert ended.value.response.headers["x-should-retry"] == "false"
    assert ended.value.body["type"] == "error"


async def test_expired_requests_are_in_the_results(served: MessageBatchServer) -> None:
    made = await served.start("a", "b")
    await served.work(made.id, answered, most=1)
    await served.batches.store.write(lambda tables: tables.lines.drop(made.id, LineState.EXPIRED, time.time()))
    done = await served.messages.retrieve(made.id)
    assert (done.processing_status, done.request_counts.expired) == ("ended", 1)
    assert [one.result.type async for one in await served.messages.results(made.id)] == ["succeeded", "expired"]


async def test_a_batch_is_deleted(served: MessageBatchServer) -> None:
    made = await served.start("a")
    await served.work(made.id, answered)
    deleted = await served.messages.delete(made.id)
    served.check(DeletedMessageBatch)
    assert deleted.id == made.id
    for call in (served.messages.retrieve, served.messages.results, served.messages.delete, served.messages.cancel):
        with pytest.raises(anthropic.NotFoundError) as caught:
            await call(made.id)
        assert caught.value.body["error"]["type"] == "not_found_error"
    assert await served.batches.store.read(lambda tables: tables.lines.results(made.id)) == []


async def test_batches_are_listed_in_both_directions(served: MessageBatchServer) -> None:
    ids = [(await served.start("a")).id for _ in range(7)][::-1]
    assert [one.id async for one in served.messages.list(limit=2)] == ids
    after = await served.messages.list(limit=3, after_id=ids[1])
    assert ([one.id for one in after.data], after.has_more) == (ids[2:5], True)
    before = await served.messages.list(limit=3, before_id=ids[5])
    assert ([one.id for one in before.data], before.has_more, before.first_id) == (ids[2:5], True, ids[2])
    assert [one.id async for one in served.messages.list(limit=2, before_id=ids[4])] == [*ids[2:4], *ids[0:2]]
    for wrong in ({"after_id": "none"}, {"before_id": "none"}, {"after_id": ids[0], "before_id": ids[1]}):
        with pytest.raises(anthropic.BadRequestError):
            await served.messages.list(**wrong)


async def test_batches_of_other_dialects_are_not_found(served: MessageBatchServer) -> None:
    ours = await served.start("a")
    theirs = await served.create(jsonl("a"))
    assert (await served.http.get(f"/v1/batches/{ours.id}")).status_code == 404
    assert (await served.http.get(f"{PATH}/{theirs.id}")).status_code == 404
    assert [one.id async for one in served.messages.list()] == [ours.id]
    assert [one.id async for one in served.client.batches.list()] == [theirs.id]
    assert [one.id async for one in served.client.files.list()] == [theirs.input_file_id]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"requests": []}', "requests"),
        (b'{"requests": [{"custom_id": "a"}]}', "requests.0"),
        (b'{"requests": [{"custom_id": "a b", "params": {}}]}', "requests.0.custom_id"),
        (b'{"requests": [{"custom_id": "a", "params": {}}, {"custom_id": "a", "params": {}}]}', "requests.1.custom_id"),
        (b'{"requests": [{"custom_id": "a", "params": {}}], "model": "x"}', None),
        (b'{"requests": [{"custom_id": "a", "params": "x"}]}', "requests.0.params"),
    ],
    ids=range(9),
)
async def test_faulty_bodies_are_refused(served: MessageBatchServer, body: bytes, where: str | None) -> None:
    answer = await served.http.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    if where is not None:
        assert where in error["error"]["message"]
    assert not list(served.batches.incoming.iterdir())
    assert served.ledger.database is None


async def test_a_body_over_the_size_is_refused(tmp_path: Path) -> None:
    served = MessageBatchServer(tmp_path, max_file=4096)
    with pytest.raises(anthropic.APIStatusError) as caught:
        await served.start(*map(str, range(100)))
    assert caught.value.status_code == 413
    assert caught.value.body["error"]["type"] == "request_too_large"

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    answer = await served.http.post(PATH, content=parts(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert not list(served.batches.incoming.iterdir())
    await served.close()


async def test_a_batch_without_room_for_its_input_is_refused(tmp_path: Path) -> None:
    served = MessageBatchServer(tmp_path, disk_reserve=2**50)
    with pytest.raises(anthropic.InternalServerError) as caught:
        await served.start("a")
    assert caught.value.status_code == 507
    assert caught.value.response.headers["x-should-retry"] == "false"
    await served.close()


async def test_a_repeated_creation_returns_the_same_batch(served: MessageBatchServer) -> None:
    again = {"extra_headers": {"Idempotency-Key": "k"}}
    first, second = await served.start("a", **again), await served.start("a", **again)
    assert first.id == second.id
    with pytest.raises(anthropic.ConflictError):
        await served.start("b", **again)
    other = await served.start("b", extra_headers={"Idempotency-Key": "k2"})
    assert {one.id async for one in served.messages.list()} == {first.id, other.id}
    await served.work(first.id, answered)
    assert await served.batches.files.sweep() >= 1


async def test_the_input_is_removed_at_the_end(served: MessageBatchServer) -> None:
    made = await served.start("a", "b")
    batch = await served.reach(made.id, BatchState.IN_PROGRESS)
    content = served.batches.files.content()
    assert await served.batches.files.sweep() == 0
    assert json.loads(content.read(batch.input_file, 0, 10_000).splitlines()[0])["body"] == PARAMS
    await served.work(made.id, answered)
    assert await served.batches.files.sweep() == 1
    with pytest.raises(FileNotFoundError):
        content.read(batch.input_file, 0, 1)


async def test_a_running_batch_has_no_results(served: MessageBatchServer) -> None:
    made = await served.start("a")
    answer = await served.http.get(f"{PATH}/{made.id}/results")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


async def test_results_of_an_old_batch_are_archived(served: MessageBatchServer) -> None:
    made = await served.start("a")
    await served.reach(made.id, BatchState.IN_PROGRESS)
    await served.batches.store.write(lambda tables: tables.batches.cancel(made.id, 50.0))
    await served.batches.store.write(lambda tables: tables.lines.drop(made.id, LineState.CANCELLED, 60.0))
    old = await served.messages.retrieve(made.id)
    served.check(MessageBatch)
    assert (old.archived_at is None, old.results_url) == (False, None)


async def test_250_batches_are_listed_by_pages_in_both_directions(served: MessageBatchServer) -> None:
    made = await served.start("a")
    first = await served.reach(made.id, BatchState.IN_PROGRESS)
    file = await served.upload(jsonl("a"))
    for surface in ("anthropic", "openai"):
        for number in range(249):
            other = replace(
                first,
                id=f"{surface}_{number:03}",
                surface=surface,
                input_file=file.id,
                created=first.created + number + 1,
            )
            await served.batches.store.write(lambda tables, other=other: tables.batches.create(other))
    newest = [f"anthropic_{number:03}" for number in reversed(range(249))] + [made.id]
    assert [one.id async for one in served.messages.list(limit=100)] == newest
    backwards = [one.id async for one in served.messages.list(limit=100, before_id=made.id)]
    assert backwards == newest[149:249] + newest[49:149] + newest[:49]
    openai_ids = [one.id async for one in served.client.batches.list(limit=100)]
    assert openai_ids == [f"openai_{number:03}" for number in reversed(range(249))]
