"""Traces: `setup` decides by the OTEL_* variables whether there are any, `spans` makes them of a request's record.

OpenTelemetry is imported only once it is on. Sampling, batching and sending are the SDK's, with its own variables.
"""
