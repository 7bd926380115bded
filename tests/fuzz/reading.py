"""Reads the control stream, one answer after another, and notes when each token arrives. The process does nothing else.

It writes a line of JSON for each long gap and each fault, and its totals every few seconds. Times of gaps are those of
CLOCK_MONOTONIC, which all processes of a system share.
"""

import json
import sys
import time
from typing import Any

import httpx

from models.process_control import die_with_parent

NOTED_FROM = 0.25
MODEL = "starter-chat"
REQUESTED = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "temperature": 0}
BODY = {**REQUESTED, "stream": True, "ignore_eos": True}


def main(port: int) -> None:
    totals: dict[str, Any] = {"streams": 0, "tokens": 0, "longest": 0.0, "first": 0.0, "seconds": 0.0}
    reported = 0.0
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        while True:
            fault = _one(http, totals)
            if fault:
                _say({"fault": fault})
                time.sleep(0.2)
            if time.monotonic() - reported > 5:
                reported = time.monotonic()
                _say({"totals": totals})


def _one(http: httpx.Client, totals: dict[str, Any]) -> str:
    """Read one stream. Return why it did not finish, or ''."""
    began, last, ended = time.monotonic(), 0.0, False
    try:
        with http.stream("POST", "/v1/chat/completions", json=BODY) as answer:
            if answer.status_code != 200:
                return f"{answer.status_code} {answer.read()[:300]!r}"
            for line in answer.iter_lines():
                if not line.startswith("data:"):
                    continue
                ended = line.endswith("[DONE]")
                now = time.monotonic()
                if not last:
                    totals["first"] = max(totals["first"], now - began)
                elif not ended:
                    totals["tokens"] += 1
                    totals["seconds"] += now - last
                    totals["longest"] = max(totals["longest"], now - last)
                    if now - last > NOTED_FROM:
                        _say({"gap": [last, now]})
                last = now
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    totals["streams"] += 1
    return "" if ended else "the stream ended without its end"


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    parent, port = map(int, sys.argv[1:])
    die_with_parent(parent)
    main(port)
