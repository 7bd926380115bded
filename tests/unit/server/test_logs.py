"""What a log line holds, for programs and for people."""

import io
import json
import logging
import re

import pytest

from runtime.server.logs import handler


def logged(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two records, the second with an error."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    log = logging.Logger("roundhouse.test")
    log.addHandler(handler(stream))
    log.info("plan %s", "é", extra={"request_id": "req-1", "seconds": 0.5, "color_message": "no field"})
    try:
        raise ValueError("it broke")
    except ValueError:
        log.exception("unmapped", extra={"model": object})
    return stream.getvalue()


def test_programs_get_one_object_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [json.loads(line) for line in logged(False, monkeypatch).splitlines()]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "info", "logger": "roundhouse.test", "message": "plan é", "request_id": "req-1", "seconds": 0.5,
    }  # fmt: skip
    assert (second["level"], second["model"]) == ("error", "<class 'object'>")
    assert second["exception"].startswith("Traceback")
    assert second["exception"].endswith("ValueError: it broke")


def test_people_get_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *error = logged(True, monkeypatch).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO    roundhouse.test: plan é request_id=req-1 seconds=0.5", first)
    assert second.endswith("ERROR   roundhouse.test: unmapped model=<class 'object'>")
    assert error[-1] == "ValueError: it broke"
