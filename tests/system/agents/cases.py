"""What every client is asked, and how its answers are printed. No import of ours: clients run in other environments."""

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
Cases = Mapping[str, Callable[[], Any]]


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int
    city: str


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def failure(work: Callable[[], Any]) -> dict[str, Any]:
    """Status and text of the error that a call raises, also where a library wraps it."""
    try:
        work()
    except Exception as error:
        inner: BaseException | None = error
        while inner is not None and not isinstance(status(inner), int):
            inner = inner.__cause__ or inner.__context__
        return {"status": status(inner), "text": str(error)}
    return {"status": 200, "text": ""}


def status(error: BaseException | None) -> int | None:
    response = getattr(error, "response", None)  # Hugging Face's errors have it there
    found: int | None = getattr(error, "status_code", getattr(response, "status_code", None))
    return found


def run(clients: Callable[[str], Mapping[str, Cases]]) -> None:
    """Print what each client got by case, as JSON. The command's argument is the server's URL."""
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
