"""Batches in the console: the list, one batch, and other teams."""

import httpx

from batches.records import BatchState, Forecast, LineState
from tests.unit.http.batches.conftest import URL, BatchServer, jsonl

HTML = {"Accept": "text/html"}


async def page(served: BatchServer, path: str) -> str:
    response: httpx.Response = await served.http.get(f"/console/{path}", headers=HTML)
    assert response.status_code == 200, response.text
    return response.text


async def test_an_empty_page_says_how_to_start(served: BatchServer) -> None:
    assert "roundhouse batch run requests.jsonl" in await page(served, "batches")


async def test_a_batch_can_be_cancelled_while_it_runs(served: BatchServer) -> None:
    batch = await served.create(jsonl("a", "b", "c"))
    await served.reach(batch.id, BatchState.IN_PROGRESS)
    rows = await page(served, "batches?part=rows")
    assert "0 of 3" in rows
    assert f"POST v1/batches/{batch.id}/cancel" in rows
    await served.client.batches.cancel(batch.id)
    await served.batches.store.write(lambda tables: tables.lines.drop(batch.id, LineState.CANCELLED, 60.0))
    await served.reach(batch.id, BatchState.CANCELLED)
    rows = await page(served, f"batches?id={batch.id}")
    assert "3: 0 answered, 0 failed, 3 cancelled" in rows
    assert f"{batch.id}/cancel" not in rows


async def test_faults_of_a_file_are_listed(served: BatchServer) -> None:
    batch = await served.create(jsonl("same", "same"))
    await served.reach(batch.id, BatchState.FAILED)
    text = await page(served, f"batches?id={batch.id}")
    assert "line 2: " in text
    assert "duplicate_custom_id" in text


async def test_forecast_and_slack_are_displayed(served: BatchServer) -> None:
    batch = await served.create(jsonl("a"))
    await served.reach(batch.id, BatchState.IN_PROGRESS)
    assert "forecast" not in await page(served, "batches?part=rows")

    async def forecast(hours: float) -> str:
        found = Forecast(batch.created_at, *(batch.created_at + 3600 * part * hours for part in (0.5, 1.0, 2.0)))
        await served.batches.store.write(lambda tables: tables.batches.store_forecasts({batch.id: found}))
        return await page(served, f"batches?id={batch.id}")

    assert "75 % of its window will be left" in await forecast(6)
    assert "after the end of its window" in await forecast(30)


async def test_deliveries_of_a_batch_are_listed(served: BatchServer) -> None:
    """With escaped URLs, and a button to send them again."""
    file = await served.upload(b"no json\n")
    url = "https://93.184.216.34/?a=<b>"
    batch = await served.client.batches.create(
        input_file_id=file.id, endpoint=URL, completion_window="24h", extra_body={"callback_url": url}
    )
    await served.reach(batch.id, BatchState.FAILED)
    text = await page(served, f"batches?id={batch.id}")
    assert "batch.failed" in text
    assert "https://93.184.216.34/?a=&lt;b&gt;" in text
    assert f"POST v1/batches/{batch.id}/redeliver" in text
