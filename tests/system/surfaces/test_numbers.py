"""Numbers that do not fit into 64 bits never cause a 5xx in any API of the chat engine.

Each place gets every third value, and the next place the values after these; with ROUNDHOUSE_NUMBERS=all each gets all.
tests/contract/chat_engine/test_numbers.py sends all of them to the engine.
"""

import os
from typing import Any

import pytest

from tests.contract.chat.nasty import CHAT, HELLO, MESSAGES, RESPONSES, TEXT
from tests.contract.chat_engine.numeric import EXTREMES, fields
from tests.system.serving import Server

pytestmark = pytest.mark.real
STEP = 1 if os.environ.get("ROUNDHOUSE_NUMBERS") == "all" else 3
MODEL = {"model": "starter-chat"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {**MODEL, "messages": HELLO, "max_tokens": 2},
    TEXT: {**MODEL, "prompt": "x", "max_tokens": 2},
    RESPONSES: {**MODEL, "input": "x", "max_output_tokens": 2},
    MESSAGES: {**MODEL, "messages": HELLO, "max_tokens": 2},
    "/api/chat": {**MODEL, "messages": HELLO, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {**MODEL, "prompt": "x", "stream": False, "options": {"num_predict": 2}},
    "/generate": {**MODEL, "inputs": "x", "parameters": {"max_new_tokens": 2}},
}


def test_no_number_of_any_dialect_is_a_fault_of_the_server(server: Server) -> None:
    numbers = fields(server.http.get("/openapi.json").json(), BODIES)
    assert {one.path for one in numbers} == set(BODIES)
    head = {"content-type": "application/json"}
    wrong = []
    for place, field in enumerate(numbers):
        for number in EXTREMES[place % STEP :: STEP]:
            answer = server.http.post(field.path, content=field.body(number, BODIES), headers=head)
            if answer.status_code not in (200, 400, 422):
                wrong.append((field.path, field.name, field.value, number, answer.status_code, answer.text[:200]))
    assert wrong == []
