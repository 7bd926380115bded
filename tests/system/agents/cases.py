"""The cases that every client runs, and how its answers are printed. No imports of ours, as clients run elsewhere."""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

HELLO, LIGHT, LIGHT_IS_ON = "hello world", "Light, please.", "The lamp glows."
ALICE = "alice is 30 years old and lives in paris"
LONG = "many words " * 900
STATE = {"type": "object", "properties": {"state": {"type": "string"}}, "required": ["state"]}
SET_LIGHT = {"name": "set_light", "parameters": STATE}
TOOL = {"type": "function", "function": SET_LIGHT}
Cases = Mapping[str, Callable[[], Any]]


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int
    city: str


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def failure(work: Callable[[], Any]) -> dict[str, Any]:
    """Return status and text of the error that a call raises, even if a library wraps it."""
    try:
        work()
    except Exception as error:
        inner: BaseException | None = error
        while inner is not None and not isinstance(status(inner), int):
            inner = inner.__cause__ or inner.__context__
        return {"status": status(inner), "text": str(error)}
    return {"status": 200, "text": ""}


def chat_cases(ask: Callable[..., Any], schema: Callable[[], Any], stop: Callable[[], None]) -> Cases:
    """Return the cases of a client whose answers have OpenAI's format.

    Args:
        ask: takes model, messages and more fields.
        schema: asks for a person.
        stop: closes a stream after its first part.
    """

    def tools() -> list[Any]:
        first = ask("scripted", user(LIGHT), tools=[TOOL]).choices[0].message
        (call,) = first.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": LIGHT_IS_ON}
        last = ask("scripted", [*user(LIGHT), first, result], tools=[TOOL])
        return [call.function.name, json.loads(call.function.arguments), last.choices[0].message.content]

    def stream() -> str:
        return "".join(part.choices[0].delta.content or "" for part in ask("uppercase", user(HELLO), stream=True))

    return {
        "text": lambda: ask("uppercase", user(HELLO)).choices[0].message.content,
        "stream": stream,
        "tools": tools,
        "schema": schema,
        **failures(ask),
        "stop": stop,
    }


def failures(ask: Callable[..., Any]) -> Cases:
    """Return cases of an unknown model, and of a prompt that is longer than the context."""
    return {
        "error": lambda: failure(lambda: ask("nobody", user(HELLO))),
        "tooLong": lambda: failure(lambda: ask("starter-chat", user(LONG))),
    }


def status(error: BaseException | None) -> int | None:
    response = getattr(error, "response", None)  # where Hugging Face's errors have it
    found: int | None = getattr(error, "status_code", getattr(response, "status_code", None))
    return found


def run(clients: Callable[[str], Mapping[str, Cases]]) -> None:
    """Print each client's results by case as JSON. The command's argument is the server's URL."""
    url = sys.argv[1]
    os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=f"{url}/v1", OPENAI_AGENTS_DISABLE_TRACING="1")
    logging.disable(logging.CRITICAL)
    answers: dict[str, dict[str, Any]] = {}
    for name, cases in clients(url).items():
        answers[name] = {}
        for title, work in cases.items():
            try:
                answers[name][title] = work()
            except Exception as error:
                answers[name][title] = {"failed": f"{type(error).__name__}: {error}"[:1500]}
    print(json.dumps(answers))
