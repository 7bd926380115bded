"""`POST /v1/batch`, our short form."""

import json
import time
from typing import Any

import pytest

from batches import service
from batches.records import BatchState, Forecast
from tests.eventually import PATIENCE
from tests.unit.http.batches.conftest import BODY, URL, BatchServer, answered, jsonl


async def create(served: BatchServer, status: int = 200, **body: Any) -> Any:
    answer = await served.http.post("/v1/batch", json={"url": URL, **body})
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_batch_of_requests_in_the_body(served: BatchServer) -> None:
    made = await create(
        served, requests=[{"body": BODY}, {"body": BODY, "custom_id": "x"}], priority="high", completion_window="2h",
        metadata={"job": "1"},
    )  # fmt: skip
    assert made["status_url"] == f"/v1/batches/{made['batch_id']}"
    batch = await served.client.batches.retrieve(made["batch_id"])
    assert (batch.status, batch.request_counts.total, batch.metadata) == ("in_progress", 2, {"job": "1"})
    assert made["expires_at"] == batch.expires_at == batch.created_at + 7200
    assert served.raw[-1]["roundhouse"]["priority"] == "high"
    assert (made["estimated_completion"], made["late"]) == (None, False), "the model is not yet measured"
    assert served.raw[-1]["roundhouse"]["forecast"] is None
    await served.work(made["batch_id"], answered)
    done = await served.client.batches.retrieve(made["batch_id"])
    lines = (await served.client.files.content(done.output_file_id)).text.splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == ["0", "x"]


async def test_a_batch_of_an_uploaded_file(served: BatchServer) -> None:
    file = await served.upload(jsonl("a"))
    made = await create(served, input_file_id=file.id, priority="low")
    batch = await served.reach(made["batch_id"], BatchState.IN_PROGRESS)
    assert (batch.input_file, batch.priority) == (file.id, 0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "requests"),
        ({"requests": [{"body": BODY}], "input_file_id": "file-1"}, "requests"),
        ({"requests": []}, "requests"),
        ({"requests": [{"body": 1}]}, "requests.0.body"),
        ({"requests": [{"params": BODY}]}, "requests.0"),
        ({"requests": [{"body": BODY}], "url": "/v1/models"}, "url"),
        ({"requests": [{"body": BODY}], "priority": "urgent"}, "priority"),
        ({"requests": [{"body": BODY}], "completion_window": "200h"}, "completion_window"),
        ({"requests": [{"body": BODY}], "metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"requests": [{"body": BODY}], "callback_url": "http://localhost"}, "callback_url"),
    ],
    ids=range(10),
)
async def test_faulty_bodies_are_refused(served: BatchServer, body: dict[str, Any], param: str) -> None:
    assert (await create(served, 400, **body))["error"]["param"] == param
    assert served.ledger.database is None


async def test_an_unknown_file_is_refused(served: BatchServer) -> None:
    assert (await create(served, 404, input_file_id="file-none"))["error"]["code"] == "file_not_found"


async def test_the_number_and_size_of_requests_are_bounded(served: BatchServer) -> None:
    many = {"requests": [{"body": {}}] * 50_001}
    assert (await create(served, 400, **many))["error"]["param"] == "requests"
    large = {"requests": [{"body": {"x": "y" * (5 << 20)}}]}
    assert (await create(served, 400, **large))["error"]["param"] == "requests.0"


async def test_a_batch_that_will_be_late_says_so(served: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FORECAST_SECONDS", PATIENCE)

    async def forecast(id_: str) -> None:
        now = time.time()
        found = Forecast(now, now + 3000, now + 4000, now + 5000)
        await served.batches.store.write(lambda tables: tables.batches.store_forecasts({id_: found}))

    served.batches.set_worker(lambda: None, forecast)
    made = await create(served, requests=[{"body": BODY}], completion_window="1h")
    assert made["late"]
    assert made["estimated_completion"] - made["expires_at"] in (399, 400, 401)
    file = await served.upload(jsonl("a"))
    made = await create(served, input_file_id=file.id, completion_window="2h")
    assert not made["late"]
    await served.client.batches.retrieve(made["batch_id"])
    more = served.raw[-1]["roundhouse"]
    assert (more["forecast"]["likely"], more["late"]) == (made["estimated_completion"], False)
    await served.work(made["batch_id"], answered)
    await served.client.batches.retrieve(made["batch_id"])
    assert "forecast" not in served.raw[-1]["roundhouse"], "the batch has ended"
