"""Traces: `setup` switches them on by the OTEL_* variables, `spans` builds them from a request's record.

OpenTelemetry is imported only if they are on. The SDK samples, batches and exports, with its own variables.
"""
