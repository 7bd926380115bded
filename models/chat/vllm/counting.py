"""What vLLM counts of an engine, by vLLM's own logger and under its own names, for Prometheus."""

from copy import copy
from importlib import import_module
from typing import Any


def logger() -> Any:
    """The class of one engine's logger, as `AsyncLLM` is started with it. It counts once `counts` is set.

    `vllm:lora_requests_info` is not among its series: it would grow by a series for each set of digests that ever ran
    together, and the gateway tells it by the adapters' names. vLLM has it where it knows of LoRA.
    """
    base: Any = import_module("vllm.v1.metrics.loggers").PrometheusStatLogger

    class Logger(base):  # type: ignore[misc]
        counts = False

        def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
            config = copy(vllm_config)
            config.lora_config = None
            super().__init__(config, engine_indexes)

        def record(self, *stats: Any, **more: Any) -> None:
            if self.counts:
                super().record(*stats, **more)

    return Logger


def count_from_now(engine: Any) -> None:
    """Warm-ups are over. Before, all series are at zero."""
    engine.roundhouse_logger.counts = True


def text(engine: Any) -> bytes:
    """The series that vLLM has registered in this process. Blocks for some milliseconds."""
    from prometheus_client import REGISTRY, generate_latest

    if not engine.output_processor.has_unfinished_requests():  # after an abort no step tells that nothing runs
        idle = import_module("vllm.v1.metrics.stats").SchedulerStats()
        engine.logger_manager.record(idle, None)
    return generate_latest(REGISTRY)
