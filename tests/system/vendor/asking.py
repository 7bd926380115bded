"""Answers and streamed events as they come over the wire, before any client parses them."""

import json
from typing import Any

import httpx


def whole(http: httpx.Client, path: str, body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(http: httpx.Client, path: str, body: Any) -> list[Any]:
    """Return the data of each event except `[DONE]`; check that a named event has the name of its type."""
    received: list[Any] = []
    with http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        name = None
        for line in answer.iter_lines():
            head, _, rest = line.partition(": ")
            if head == "event":
                name = rest
            elif head == "data" and rest != "[DONE]":
                received.append(json.loads(rest))
                assert name is None or name == received[-1]["type"]
    assert received
    return received
