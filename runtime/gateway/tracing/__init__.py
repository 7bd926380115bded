"""Traces: what of a request becomes a span, and where spans go. OpenTelemetry is imported here, and only once it is on.

| what                                            | where       |
|-------------------------------------------------|-------------|
| whether there are traces, by the OTEL_* variables | `starting` |
| spans of a request, made at its end from its record | `spans`  |
| names of spans and of what stands on them       | `names`     |

Not here: sampling, batching, where they are sent and how: the SDK has these, and its variables.
"""
