"""Switches traces on or off by OpenTelemetry's own variables.

If several exporters are named, `otlp` is used:

| OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER   | an endpoint is named | traces                                        |
|-------------------------------------------|----------------------|-----------------------------------------------|
| `true`, or `none`                         | -                    | no                                            |
| neither                                   | no                   | no                                            |
| neither, or `otlp`                        | yes                  | yes                                           |
| `otlp`                                    | no                   | yes, to http://localhost:4318                 |

Variables that a cluster sets for all its services must not keep a server from starting, so problems are only logged.
"""

import importlib.util
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.gateway.tracing.spans import Spans

log = logging.getLogger("roundhouse.gateway")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP = "http/protobuf"
NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


def is_enabled(variables: Mapping[str, str]) -> bool:
    named = variables.get("OTEL_TRACES_EXPORTER", "").lower().split(",")
    exporters = {name.strip() for name in named} - {""}
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or "none" in exporters:
        return False
    return "otlp" in exporters or (not exporters and any(variables.get(name) for name in ENDPOINTS))


def start(variables: Mapping[str, str] = os.environ) -> "Spans | None":
    """Start traces. None if they are off; then OpenTelemetry is not imported."""
    if not is_enabled(variables):
        return None
    protocol = next((variables[name] for name in PROTOCOLS if variables.get(name)), HTTP)
    if protocol != HTTP:
        log.warning(
            "no traces: OTLP goes over HTTP only", extra={"protocol": protocol, "set": f"{PROTOCOLS[1]}={HTTP}"}
        )
        return None
    if missing := [name for name in NEEDED if not _is_installed(name)]:
        log.warning(
            "no traces: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
            extra={"missing": missing},
        )
        return None
    try:
        from runtime.gateway.tracing.spans import make_exporter

        return make_exporter(variables)
    except ValueError as error:  # OpenTelemetry rejected the value of a variable
        log.warning("no traces: OpenTelemetry refuses its variables", extra={"cause": str(error)})
        return None


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
