"""Server-sent events from an answer's lines."""

import json
import re
from collections.abc import Iterator

from runtime.cli.client import Json, failure_from
from runtime.cli.progress import Bar

_PROGRESS = re.compile(r"^: (\S+) (.+) (\d+)%$")


def events(lines: Iterator[str], shown: Bar) -> Iterator[Json]:
    """Each event's object until [DONE]. Comments tell the progress of a load and go to the bar.

    Raises Refused or ServerFailed for an error event.
    """
    for line in lines:
        if told := _PROGRESS.match(line):
            shown.show(f"{told[1]}: {told[2]}", int(told[3]) / 100)
        if not line.startswith("data:"):
            continue
        text = line[5:].strip()
        if text == "[DONE]":
            return
        found = json.loads(text)
        if "error" in found:
            raise failure_from(found, 500)
        yield found
