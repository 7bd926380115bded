"""OpenAI's SDK reads usage from the ledger in pages of buckets."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tenants.ledger.ledger import Ledger
from tenants.ledger.organization import UsageQuery, page_of
from tenants.ledger.rows import Entry, Settlement
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables
from tests.unit.http.fakes import FakeGateway, application

DAY, HOUR = 86_400, 3600


def row(uid: str, at: int, team: str, endpoint: str, *, source: str = "api", audio: int = 0) -> Settlement:
    entry = Entry(uid, uid, 1, at, team, f"key-{team}", endpoint, f"{team}-model", "r", "", "interactive", source)
    return Settlement(entry, "done", 200, None, 100, 40, 7, audio)


ROWS = [
    row("a", 5, "search", "/v1/chat/completions"),
    row("b", DAY + HOUR, "search", "/api/chat"),
    row("c", DAY + 2 * HOUR, "speech", "/v1/messages", source="batch"),
    row("d", 5, "search", "/v1/embeddings"),
    row("e", 5, "speech", "/v1/audio/transcriptions", audio=2600),
    row("f", 5, "search", "/v1/rerank"),
]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    database = open_tables(tmp_path / "data")
    LedgerTable(database, "other").write([one.entry for one in ROWS], ROWS)
    ledger = Ledger(tmp_path / "data")
    await ledger.enable(database)
    transport = httpx2.ASGITransport(app=application(FakeGateway(tmp_path, ledger=ledger)))
    http = httpx2.AsyncClient(transport=transport)
    async with openai.AsyncOpenAI(
        admin_api_key="x", api_key="x", base_url="http://test/v1", http_client=http, max_retries=0
    ) as found:
        yield found
    await ledger.close()
    database.close()


async def test_usage_has_a_bucket_for_each_day_and_row_for_each_group(client: openai.AsyncOpenAI) -> None:
    usage = client.admin.organization.usage
    page = await usage.completions(start_time=0, end_time=3 * DAY)
    assert [(b.start_time, b.end_time, len(b.results)) for b in page.data] == [
        (0, DAY, 1), (DAY, 2 * DAY, 1), (2 * DAY, 3 * DAY, 0),
    ]  # fmt: skip
    (first,) = page.data[0].results
    assert first.object == "organization.usage.completions.result"
    assert (first.input_tokens, first.input_cached_tokens, first.output_tokens) == (100, 40, 7)
    assert (first.num_model_requests, first.project_id) == (1, None)
    assert (page.has_more, page.next_page) == (False, None)
    names = ["project_id", "api_key_id", "model", "batch", "service_tier"]
    grouped = await usage.completions(start_time=DAY, end_time=2 * DAY, group_by=names)  # type: ignore[arg-type]
    found = [one for bucket in grouped.data for one in bucket.results]
    assert [tuple(getattr(one, name) for name in names) for one in found] == [
        ("search", "key-search", "search-model", False, "default"),
        ("speech", "key-speech", "speech-model", True, "default"),
    ]


async def test_buckets_of_minutes_equal_those_of_hours(client: openai.AsyncOpenAI) -> None:
    """Minutes are read from the rows, hours from sums."""
    usage = client.admin.organization.usage
    seen = []
    page = await usage.completions(start_time=DAY, end_time=DAY + 3 * HOUR, bucket_width="1m", limit=100)
    while True:
        seen += page.data
        if page.next_page is None:
            break
        page = await usage.completions(
            start_time=DAY, end_time=DAY + 3 * HOUR, bucket_width="1m", limit=100, page=page.next_page
        )
    assert [bucket.start_time for bucket in seen] == [DAY + 60 * minute for minute in range(180)]
    full = {b.start_time: (b.end_time, b.results[0]) for b in seen if b.results}
    hourly = await usage.completions(start_time=DAY, end_time=DAY + 3 * HOUR, bucket_width="1h")
    assert full == {b.start_time: (b.start_time + 60, b.results[0]) for b in hourly.data if b.results}
    assert full.keys() == {DAY + HOUR, DAY + 2 * HOUR}
    usual = await usage.completions(start_time=0, end_time=DAY, bucket_width="1m", group_by=["project_id"], batch=False)
    assert (len(usual.data), usual.data[0].results[0].project_id) == (60, "search")  # type: ignore[union-attr]


async def test_filters_select_requests(client: openai.AsyncOpenAI) -> None:
    usage = client.admin.organization.usage

    async def count(**filters: Any) -> int:
        page = await usage.completions(start_time=0, end_time=3 * DAY, **filters)
        return sum(one.num_model_requests for b in page.data for one in b.results)  # type: ignore[union-attr]

    assert await count() == 3
    assert await count(project_ids=["speech"]) == 1
    assert await count(project_ids=["speech", "search"], models=["search-model"]) == 2
    assert await count(api_key_ids=["key-nobody"]) == 0
    assert await count(batch=True) == 1
    assert await count(batch=False) == 2


async def test_embeddings_and_transcriptions_have_their_own_usage(client: openai.AsyncOpenAI) -> None:
    usage = client.admin.organization.usage
    embedded = (await usage.embeddings(start_time=0, end_time=DAY)).data[0].results[0]
    assert (embedded.object, embedded.input_tokens) == ("organization.usage.embeddings.result", 100)
    received = (await usage.audio_transcriptions(start_time=0, end_time=DAY)).data[0].results[0]
    assert (received.object, received.seconds) == ("organization.usage.audio_transcriptions.result", 3)


async def test_unavailable_usage_kinds_do_not_exist(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        await client.admin.organization.usage.images(start_time=0, end_time=DAY)
    assert error.value.code == "unknown_path"


async def test_each_task_reports_its_groups(client: openai.AsyncOpenAI) -> None:
    """The rows of embeddings did not say which of them was of a batch."""
    usage = client.admin.organization.usage
    page = await usage.embeddings(start_time=0, end_time=DAY, extra_query={"group_by": ["batch", "service_tier"]})
    (row_,) = page.data[0].results
    assert row_.model_extra == {"batch": False, "service_tier": "default"}


async def test_pages_follow_each_other_without_gaps(client: openai.AsyncOpenAI) -> None:
    usage = client.admin.organization.usage
    seen: list[int] = []
    page = await usage.completions(start_time=0, end_time=30 * HOUR, bucket_width="1h", limit=12)
    while True:
        seen += [bucket.start_time for bucket in page.data]
        if page.next_page is None:
            break
        assert page.has_more
        page = await usage.completions(
            start_time=0, end_time=30 * HOUR, bucket_width="1h", limit=12, page=page.next_page
        )
    assert seen == [hour * HOUR for hour in range(30)]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"bucket_width": "1s"}, "bucket_width"), ({"bucket_width": "1m", "limit": 1441}, "limit"),
        ({"group_by": ["user_id"]}, "group_by"), ({"limit": 32}, "limit"),
        ({"end_time": 0}, "end_time"), ({"user_ids": ["x"]}, "user_ids[]"), ({"page": "x"}, "page"),
        ({"batch": "yes"}, "batch"), ({"page": "0", "start_time": 2 * DAY, "end_time": 3 * DAY}, "page"),
    ],
)  # fmt: skip
async def test_invalid_queries_are_refused(client: openai.AsyncOpenAI, wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await client.admin.organization.usage.completions(**{"start_time": 1, **wrong})
    assert error.value.param == param


def test_lists_in_queries_are_repeated_with_or_without_brackets(tmp_path: Path) -> None:
    from runtime.http.organization.usage import _parse_query

    repeated, brackets = (
        _parse_query([("start_time", "5"), (name, "model"), (name, "batch")], ()) for name in ("group_by", "group_by[]")
    )
    assert repeated.group_by == brackets.group_by == ("model", "batch")


def test_a_page_after_the_end_is_empty(tmp_path: Path) -> None:
    database = open_tables(tmp_path)
    page = page_of(database, UsageQuery(0, DAY, page=5 * DAY))
    assert (page.buckets, page.next) == ([], None)
    database.close()
