"""What vLLM counts of an engine, by vLLM's own logger and under its own names, for Prometheus."""

from importlib import import_module
from typing import Any


def loggers() -> list[Any]:
    """What `AsyncLLM` is started with so that EngineCore tells its figures: no lines in a log, only series."""
    return [import_module("vllm.v1.metrics.loggers").PrometheusStatLogger]


def count_from_now(engine: Any) -> None:
    """Series that begin at zero, once warm-ups are over.

    `vllm:lora_requests_info` is not among them: it would grow by a series for each set of digests that ever ran
    together, and the gateway tells it by the adapters' names.
    """
    manager = engine.logger_manager
    fresh = loggers()[0](engine.vllm_config, manager.engine_indexes)
    fresh.gauge_lora_info = None
    fresh.log_engine_initialized()
    manager.stat_loggers[:] = [fresh]


def text(engine: Any) -> bytes:
    """The series that vLLM has registered in this process. Blocks for some milliseconds."""
    from prometheus_client import REGISTRY, generate_latest

    if not engine.output_processor.has_unfinished_requests():  # after an abort no step tells that nothing runs
        idle = import_module("vllm.v1.metrics.stats").SchedulerStats()
        engine.logger_manager.record(idle, None)
    return generate_latest(REGISTRY)
