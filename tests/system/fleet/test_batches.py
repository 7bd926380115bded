"""A batch created at a front: a node runs its lines, and both servers see the same batch."""

from pathlib import Path

import pytest

from tests.system.batches.test_openai import CHAT, chat, read, run, write
from tests.system.fleet.test_clients import Pair, of_openai

pytestmark = pytest.mark.real


def test_a_batch_of_a_front_is_run_and_counted_by_a_node(pair: Pair, tmp_path: Path) -> None:
    front, node = pair
    client = of_openai(front)
    rows = [
        chat("c", "uppercase", "good green house"),
        chat("b", "acronym@v1", "good green house"),
        chat("unknown", "nobody", "good green house"),
    ]
    batch = run(client, write(tmp_path / "in.jsonl", rows), CHAT)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 3, 2, 1)
    output = read(client, batch.output_file_id)
    bodies = [line["response"]["body"] for line in output]
    assert [body["choices"][0]["message"]["content"] for body in bodies] == ["GOOD GREEN HOUSE", "GGH"]
    [error] = read(client, batch.error_file_id)
    assert error["response"]["body"]["error"]["code"] == "model_not_found"
    assert of_openai(node).batches.retrieve(batch.id).usage == batch.usage
    total = sum(body["usage"]["total_tokens"] for body in bodies)
    assert batch.usage.total_tokens == total
    for line, body in zip(output, bodies, strict=True):
        [row] = node.http.get(f"/v1/requests/{line['response']['request_id']}").json()["ledger"]
        counted = row["prompt_tokens"] + row["completion_tokens"]
        assert (row["source"], row["state"], row["status"]) == ("batch", "settled", 200)
        assert counted == body["usage"]["total_tokens"]
