"""Logs on standard error: JSON lines, or plain lines on a terminal.

`extra` fields become fields of the object, such as `request_id`. Prompts, audio, keys and answers are never logged.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS, merge_record_extra
from pythonjsonlogger.json import JsonFormatter

_NO_FIELDS = (*RESERVED_ATTRS, "color_message")


class JsonLines(JsonFormatter):
    """JSON lines with time and level first."""

    def __init__(self) -> None:
        super().__init__(
            ["levelname", "name", "message"],
            rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
            reserved_attrs=_NO_FIELDS,
            timestamp="time",
            json_default=str,
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        time = f"{log_data.pop('time'):%Y-%m-%dT%H:%M:%S.%f}"[:-3]
        return {"time": f"{time}Z", "level": log_data.pop("level").lower(), **log_data}


class PlainLines(logging.Formatter):
    """Plain lines with the fields after the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = merge_record_extra(record, {}, _NO_FIELDS)
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])


REQUESTS = "roundhouse.requests"
"""Name of the logger that writes one line per request."""


class RepeatFilter(logging.Filter):
    """Limits warnings per line of code, so that clients cannot flood the log.

    The first record after a limited period has the number of omitted ones (`left_out`).
    """

    MAX_RECORDS, SECONDS = 20, 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, int], tuple[float, int]] = {}
        """File and line to the start of the current period and the number of records in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.name == REQUESTS:
            return True
        place, now = (record.pathname, record.lineno), self._clock()
        began, count = self._windows.get(place, (now, 0))
        if now - began >= self.SECONDS:
            if count > self.MAX_RECORDS:
                record.left_out = count - self.MAX_RECORDS
            began, count = now, 0
        self._windows[place] = began, count + 1
        return count < self.MAX_RECORDS


def handler(stream: TextIO) -> logging.Handler:
    """Create a log handler for a stream, plain for a terminal."""
    result = logging.StreamHandler(stream)
    result.setFormatter(PlainLines() if stream.isatty() else JsonLines())
    result.addFilter(RepeatFilter())
    return result


def configure(level: str) -> None:
    """Route all logs and Python's warnings through one handler; libraries log only warnings and above."""
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers[:] = [handler(sys.stderr)]
    root.setLevel(logging.WARNING)
    logging.getLogger("roundhouse").setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "litserve", "litserve.server"):
        logger = logging.getLogger(name)
        logger.handlers[:] = []
        logger.propagate = True
        logger.setLevel(logging.WARNING)
