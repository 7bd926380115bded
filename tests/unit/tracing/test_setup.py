"""Traces are kept where OpenTelemetry's variables say so, and only then is anything of it imported."""

import logging
import subprocess
import sys

import pytest

from runtime.gateway.tracing import setup

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": URL}, False),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_ENDPOINT": URL}, False),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": URL}, False),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_is_enabled(variables: dict[str, str], expected: bool) -> None:
    assert setup.is_enabled(variables) is expected


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged, on a logger of this file's own: what another test loads may silence those that are there."""
    monkeypatch.setattr(setup, "log", logging.getLogger("tests.tracing"))
    caplog.set_level("WARNING", "tests.tracing")
    return caplog


def test_another_protocol_is_logged_and_no_fault(reported: pytest.LogCaptureFixture) -> None:
    assert setup.start({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None
    assert "HTTP only" in reported.text


def test_a_missing_extra_is_logged_and_no_fault(
    monkeypatch: pytest.MonkeyPatch, reported: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(setup, "NEEDED", ("nothing.of.this.name", "email.nothing"))
    assert setup.start({"OTEL_TRACES_EXPORTER": "otlp"}) is None
    assert "pip install opentelemetry-sdk" in reported.text


@pytest.mark.parametrize(("name", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "10"), ("OTEL_ATTRIBUTE_COUNT_LIMIT", "many")])
def test_a_variable_that_the_sdk_refuses_is_logged_and_no_fault(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, reported: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, value)
    assert setup.start({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}) is None
    assert "no traces" in reported.text


async def test_a_collector_that_is_not_there_does_not_keep_the_server_from_stopping() -> None:
    tracing = setup.start({"OTEL_EXPORTER_OTLP_ENDPOINT": URL})
    assert tracing is not None
    await tracing.close()


IMPORTS = """
import sys, runtime.gateway.opening, runtime.http.app
from runtime.gateway.tracing.setup import start
assert start({}) is None
print([name for name in sys.modules if name.split(".")[0] == "opentelemetry"])
"""


def test_nothing_is_imported_when_off() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
