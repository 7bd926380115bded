"""The contents of log lines, for programs and for people."""

import asyncio
import io
import json
import logging
import re
import subprocess
import sys

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from runtime.config.logs import REQUESTS, RepeatFilter, configure, handler


def log_output(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the log of two records, the second with an exception."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    log = logging.Logger("roundhouse.test")
    log.addHandler(handler(stream))
    log.info("plan %s", "é", extra={"request_id": "req-1", "seconds": 0.5, "color_message": "left out"})
    try:
        raise ValueError("it broke")
    except ValueError:
        log.exception("unmapped", extra={"model": object})
    return stream.getvalue()


def test_programs_get_one_json_object_per_line(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [json.loads(line) for line in log_output(False, monkeypatch).splitlines()]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "info", "logger": "roundhouse.test", "message": "plan é", "request_id": "req-1", "seconds": 0.5,
    }  # fmt: skip
    assert (second["level"], second["model"]) == ("error", "<class 'object'>")
    assert second["exception"].startswith("Traceback")
    assert second["exception"].endswith("ValueError: it broke")


def test_people_get_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *error = log_output(True, monkeypatch).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO    roundhouse.test: plan é request_id=req-1 seconds=0.5", first)
    assert second.endswith("ERROR   roundhouse.test: unmapped model=<class 'object'>")
    assert error[-1] == "ValueError: it broke"


def test_uvicorn_logs_no_line_per_request() -> None:
    """It would do so despite `access_log` as soon as a logger above its own has a handler."""
    loop, names = (
        asyncio.new_event_loop(),
        ("", "roundhouse", "uvicorn", "uvicorn.error", "litserve", "litserve.server"),
    )
    loggers = [logging.getLogger(name) for name in names]
    before = [(list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    try:
        config = uvicorn.Config(FastAPI(), access_log=False, log_config=None)
        configure("info")
        assert not HttpToolsProtocol(config, ServerState(), {}, loop).access_log
    finally:
        loop.close()
        logging.captureWarnings(False)
        for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)


def test_one_client_cannot_flood_the_log() -> None:
    """Repeated warnings of one line of a library are cut; other warnings and the log of requests are not."""
    stream = io.StringIO()
    writer = handler(stream)

    def logger(name: str) -> logging.Logger:
        result = logging.Logger(name)  # outside the tree, whose levels other tests and libraries set
        result.addHandler(writer)
        return result

    library, requests = logger("a.library"), logger(REQUESTS)
    for number in range(500):
        library.warning(f"Invalid HTTP request received: {number}")
        requests.warning("request ended")
    library.warning("something else")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines].count("request ended") == 500
    assert sum(line["message"].startswith("Invalid HTTP request received:") for line in lines) == 20
    assert [line["message"] for line in lines].count("something else") == 1


def test_omitted_records_are_counted() -> None:
    now = [0.0]
    repeats = RepeatFilter(lambda: now[0])
    records = [logging.makeLogRecord({"levelno": logging.WARNING, "pathname": "a", "lineno": 1}) for _ in range(30)]
    assert sum(map(repeats.filter, records)) == repeats.MAX_RECORDS
    now[0] = repeats.SECONDS
    last = logging.makeLogRecord({"levelno": logging.WARNING, "pathname": "a", "lineno": 1})
    assert repeats.filter(last)
    assert last.__dict__["left_out"] == 10


def test_pythons_warnings_are_logged() -> None:
    code = "import warnings; from runtime.config.logs import configure; configure('info'); warnings.warn('old')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["logger"], line["level"]) == ("py.warnings", "warning")
    assert "UserWarning: old" in line["message"]
