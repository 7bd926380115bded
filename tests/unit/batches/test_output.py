"""Lines of output files, error files and results: each a JSON object on one line, in the vendors' formats."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types.messages import MessageBatchIndividualResponse
from pydantic import TypeAdapter

from batches.output import OutputKind, kind_of, render_line, render_result
from batches.records import Line, LineState

MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "ü\n"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 2},
}  # fmt: skip
REFUSED = {"type": "error", "error": {"type": "not_found_error", "message": "no"}, "request_id": "req-2"}


def ended(state: LineState = LineState.ENDED, **fields: Any) -> Line:
    fields = {"status": 200, "request": "req-1", "result": json.dumps(MESSAGE).encode(), "attempts": 1, **fields}
    return Line("batch_00ff", 17, "my id", "m", 0, 1, state, served="m@1", **fields)


def rendered(line: Line) -> dict[str, Any]:
    data = render_line(line)
    assert len(data.decode().splitlines()) == 1
    found: dict[str, Any] = json.loads(data)
    assert found.keys() == {"id", "custom_id", "response", "error", "roundhouse"}
    assert (found["id"], found["custom_id"]) == ("batch_req_00ff000011", "my id")
    return found


def test_an_answer_is_a_response_in_the_output_file() -> None:
    line = ended(adapter="tone@sha256:00")
    assert kind_of(line) is OutputKind.OUTPUT
    found = rendered(line)
    assert found["response"] == {"status_code": 200, "request_id": "req-1", "body": MESSAGE}
    assert found["error"] is None
    assert found["roundhouse"] == {"model": "m@1", "adapter": "tone@sha256:00", "attempts": 1}


@pytest.mark.parametrize(
    "body",
    [json.dumps(MESSAGE, indent=2), json.dumps(MESSAGE) + "\n\n", json.dumps(MESSAGE, indent=2).replace("\n", "\r")],
)
def test_a_body_on_several_lines_is_written_on_one(body: str) -> None:
    assert rendered(ended(result=body.encode()))["response"]["body"] == MESSAGE


@pytest.mark.parametrize("render", [render_line, render_result])
def test_no_character_of_an_answer_ends_its_line(render: Callable[[Line], bytes]) -> None:
    """Clients split files by `splitlines`, which also ends lines at characters that may stand in JSON."""
    text = "a\x85b\u2028c\u2029d\\u2028\x0b"
    message = {**MESSAGE, "content": [{"type": "text", "text": text}]}
    [data] = render(ended(result=json.dumps(message, ensure_ascii=False).encode())).decode().splitlines()
    found = json.loads(data)
    assert (found["response"]["body"] if "response" in found else found["result"]["message"]) == message


@pytest.mark.parametrize("body", ["1\n00:00 --> 00:01\nHello\n", "Hello.", "WEBVTT\n"])
def test_a_body_that_is_no_json_becomes_a_string(body: str) -> None:
    assert rendered(ended(result=body.encode()))["response"]["body"] == body


def test_a_refusal_is_a_response_in_the_error_file() -> None:
    line = ended(status=404, result=json.dumps(REFUSED).encode())
    assert kind_of(line) is OutputKind.ERRORS
    found = rendered(line)
    assert found["response"] == {"status_code": 404, "request_id": "req-1", "body": REFUSED}
    assert found["error"] is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (ended(LineState.EXPIRED, status=None, result=None), "batch_expired"),
        (ended(LineState.CANCELLED, status=None, result=None), "batch_cancelled"),
        (ended(status=None, result=None, code="engine_died"), "engine_died"),
        (ended(status=None, result=None), "no_answer"),
    ],
)
def test_without_an_answer_there_is_an_error(line: Line, code: str) -> None:
    assert kind_of(line) is OutputKind.ERRORS
    found = rendered(line)
    assert found["response"] is None
    assert found["error"]["code"] == code
    assert found["error"]["message"]


@pytest.mark.parametrize("state", [LineState.WAITING, LineState.RUNNING])
def test_a_line_that_has_not_ended_is_in_no_file(state: LineState) -> None:
    assert kind_of(ended(state, status=None)) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (ended(), {"type": "succeeded", "message": MESSAGE}),
        (ended(status=404, result=json.dumps(REFUSED).encode()), {"type": "errored", "error": REFUSED}),
        (ended(LineState.CANCELLED, status=None, result=None), {"type": "canceled"}),
        (ended(LineState.EXPIRED, status=None, result=None), {"type": "expired"}),
    ],
)
def test_results_have_anthropics_format(line: Line, expected: dict[str, Any]) -> None:
    data = render_result(line)
    assert data.count(b"\n") == 1
    assert json.loads(data) == {"custom_id": "my id", "result": expected}
    TypeAdapter(MessageBatchIndividualResponse).validate_json(data, strict=True)


def test_a_result_without_an_answer_is_an_error_in_anthropics_format() -> None:
    found = json.loads(render_result(ended(status=None, result=None, code="engine_died")))["result"]
    assert found["type"] == "errored"
    assert found["error"]["error"]["type"] == "api_error"
