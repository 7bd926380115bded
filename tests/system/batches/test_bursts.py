"""Bursts of interactive requests on an engine that is full of batch lines, on the real server and engine."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from tests.eventually import eventually
from tests.system.batches.test_openai import CHAT, chat, read, write
from tests.system.serving import Server

pytestmark = pytest.mark.real
LINES, TOKENS, PLACES = 48, 200, 32
MORE_LINES = 1000
"""Lines of the second batch: more than the engine can answer during the bursts, however slow the clients are."""
LOST = "roundhouse_batch_line_seconds_total"


def test_requests_take_places_of_batch_lines_and_all_answers_are_right(
    server: Server, client: OpenAI, tmp_path: Path
) -> None:
    """The first of the bursts of 40, 16 and 8 is larger than all places together with the spare ones.

    A second batch, which is cancelled in the end, keeps the engine full; the first batch is checked.
    """
    rows = [
        chat(f"long-{number}", "starter-chat", f"word {number}", max_tokens=TOKENS, ignore_eos=True)
        for number in range(LINES)
    ]
    rows += [chat(f"short-{number}", "uppercase", f"word {number}") for number in range(LINES)]
    more = [
        chat(f"more-{number}", "starter-chat", f"word {number}", max_tokens=2 * TOKENS, ignore_eos=True)
        for number in range(MORE_LINES)
    ]
    before = server.metric(LOST, outcome="lost")
    batch, filler = (_create(client, write(tmp_path / "in.jsonl", lines)) for lines in (rows, more))

    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"person {number}"}]
        answer = server.http.post(CHAT, json={"model": "uppercase", "messages": messages, "temperature": 0})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(40) as threads:
        eventually(lambda: server.metric("roundhouse_running_requests", model="starter-chat") >= PLACES)

        def burst(size: int) -> bool:
            """Send so many requests at once; return whether any line has lost work.

            Requests that arrive one by one find a free place instead.
            """
            assert list(threads.map(ask, range(size))) == [f"PERSON {number}" for number in range(size)]
            return server.metric(LOST, outcome="lost") > before

        for size in (40, 16, 8):
            burst(size)
        eventually(lambda: burst(40))
    client.batches.cancel(filler)
    eventually(lambda: client.batches.retrieve(batch).status == "completed", lambda: client.batches.retrieve(batch))
    eventually(lambda: client.batches.retrieve(filler).status == "cancelled", lambda: client.batches.retrieve(filler))
    lines = {line["custom_id"]: line for line in read(client, client.batches.retrieve(batch).output_file_id)}
    assert len(lines) == 2 * LINES
    assert {line["roundhouse"]["attempts"] for line in lines.values()} == {1}
    for number in range(LINES):
        answer = lines[f"short-{number}"]["response"]["body"]["choices"][0]["message"]["content"]
        assert answer == f"WORD {number}"
        assert lines[f"long-{number}"]["response"]["body"]["usage"]["completion_tokens"] == TOKENS


def _create(client: OpenAI, path: Path) -> str:
    with path.open("rb") as content:
        file = client.files.create(file=content, purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id
