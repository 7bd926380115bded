"""Scripted answers of vLLM's completions for text generation, and functions that read the results."""

import json
from collections.abc import Sequence
from typing import Any

import httpx

from models.messages import Chunk, Event, HttpCall, ResponseEnd, ResponseStart, Usage
from registry.errors import RoundhouseError
from tests.unit.http.fakes import FakeGateway

PATHS = ("/generate", "/generate_stream", "/")
REQUEST = {"inputs": "hi"}
PLAIN: dict[str, Any] = {
    "prompt": "hi", "model": "chat", "stream": False, "max_tokens": 1024, "temperature": 0.0, "top_k": 0, "top_p": 1.0,
    "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "stop": [],
    "include_stop_str_in_output": True, "ignore_eos": False,
}  # fmt: skip
TOKEN_DETAILS = {"logprobs": 0, "return_token_ids": True, "echo": False}
SAMPLED = {**PLAIN, "temperature": 1.0}


def answers(gateway: FakeGateway, choice: dict[str, Any], status: int = 200) -> None:
    body = choice if "error" in choice else {"choices": [choice]}
    events: Sequence[Event] = [
        ResponseStart(status=status, content_type="application/json"), Chunk(data=json.dumps(body).encode()),
        ResponseEnd(usage=Usage(prompt_tokens=2, completion_tokens=3)),
    ]  # fmt: skip
    gateway.links["chat"].script = lambda _: events


def token(text: str, id_: int, name: str = "", **more: Any) -> dict[str, Any]:
    """Return a choice of vLLM's stream with one token."""
    return {
        "text": text, "token_ids": [id_], "logprobs": {"tokens": [name or text], "token_logprobs": [-0.5]}, **more,
    }  # fmt: skip


FIRST = token("a", 5, prompt_token_ids=[1, 2])
END = token("", 0, "<|end|>", finish_reason="stop")


def streams(gateway: FakeGateway, *choices: dict[str, Any], end: RoundhouseError | None = None, cut: int = 0) -> None:
    """Script vLLM's stream, in parts of `cut` bytes unless that is 0."""
    data = b"".join(b"data: %s\n\n" % json.dumps({"choices": [c]} if "error" not in c else c).encode() for c in choices)
    data += b"" if end else b"data: [DONE]\n\n"
    parts = [data[at : at + cut] for at in range(0, len(data), cut)] if cut else [data]
    events: list[Event | RoundhouseError] = [ResponseStart(status=200, content_type="text/event-stream")]
    events += [Chunk(data=part) for part in parts]
    gateway.links["chat"].script = lambda _: [*events, end or ResponseEnd(usage=Usage())]


def sent(gateway: FakeGateway) -> dict[str, Any]:
    request = gateway.links["chat"].requests[-1]
    assert isinstance(request, HttpCall)
    assert request.path == "/v1/completions"
    found: dict[str, Any] = json.loads(request.body)
    return found


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n") if line]
    assert all(line.startswith("data:") for line in lines)
    return [json.loads(line[5:]) for line in lines]
