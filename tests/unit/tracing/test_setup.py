"""Traces are exported if OpenTelemetry's variables say so, and only then is its SDK imported."""

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
def test_traces_are_enabled_by_opentelemetrys_variables(variables: dict[str, str], expected: bool) -> None:
    assert setup.is_enabled(variables) is expected


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture the log of a logger of this file only, since code of other tests may silence existing loggers."""
    monkeypatch.setattr(setup, "log", logging.getLogger("tests.tracing"))
    caplog.set_level("WARNING", "tests.tracing")
    return caplog


def test_another_protocol_is_logged_and_disables_traces(reported: pytest.LogCaptureFixture) -> None:
    assert setup.start({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None
    assert "HTTP only" in reported.text


def test_a_missing_extra_is_logged_and_disables_traces(
    monkeypatch: pytest.MonkeyPatch, reported: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(setup, "NEEDED", ("nothing.of.this.name", "email.nothing"))
    assert setup.start({"OTEL_TRACES_EXPORTER": "otlp"}) is None
    assert "pip install opentelemetry-sdk" in reported.text


@pytest.mark.parametrize(("name", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "10"), ("OTEL_ATTRIBUTE_COUNT_LIMIT", "many")])
def test_a_variable_that_the_sdk_refuses_is_logged_and_disables_traces(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, reported: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, value)
    assert setup.start({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}) is None
    assert "no traces" in reported.text


async def test_an_unreachable_collector_does_not_prevent_a_stop() -> None:
    tracing = setup.start({"OTEL_EXPORTER_OTLP_ENDPOINT": URL})
    assert tracing is not None
    await tracing.close()


IMPORTS = """
import sys, runtime.gateway.opening, runtime.http.app
from runtime.gateway.tracing.setup import start
assert start({}) is None
print([name for name in sys.modules if name.split(".")[0] == "opentelemetry"])
"""


def test_nothing_is_imported_while_traces_are_disabled() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
