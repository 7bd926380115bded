"""Exact token counts of every call, engine metrics, and clean-up after failed requests.

vLLM's HTTP layer reports usage only with a finished answer. But each engine request of a call passes through
`OutputProcessor.add_request` in the call's own context. The state object created there has the prompt's length, its
cached part and every output token, and stays readable after the request is gone. vLLM registers this state before it
encodes the request for EngineCore; if that fails or is cancelled, nothing in vLLM aborts the request.
"""

from contextvars import ContextVar
from copy import copy
from importlib import import_module
from typing import Any

from models.messages import Usage

METER: ContextVar["UsageMeter | None"] = ContextVar("roundhouse_meter", default=None)


class CallEnded(Exception):
    """The client left before this part of its request reached the engine."""


class UsageMeter:
    """The engine requests of one call."""

    def __init__(self) -> None:
        self._states: list[Any] = []
        self.closed = False

    def add(self, state: Any) -> None:
        self._states.append(state)

    @property
    def request_ids(self) -> list[str]:
        """Return the internal ids of the engine requests, including finished ones; one id for several answers."""
        return list(dict.fromkeys((state.parent_req or state).request_id for state in self._states))

    def usage(self) -> Usage:
        """Return the usage so far. A prompt counts once even with several answers (`n`); every sampled token counts."""
        prompt = completion = cached = 0
        for state in self._states:
            if state.parent_req is None or state.request_index == 0:
                prompt += state.prompt_len
                cached += min(max(state.num_cached_tokens, 0), state.prompt_len)
            if state.detokenizer:
                completion += state.detokenizer.num_output_tokens()
        return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def meter_requests(output_processor: Any) -> None:
    """Register every request that enters `output_processor` with the meter of its call."""
    add_request = output_processor.add_request

    def metered(request: Any, *args: Any, **kwargs: Any) -> None:
        meter = METER.get()
        if meter is not None and meter.closed:
            raise CallEnded("the client left")
        add_request(request, *args, **kwargs)
        if meter is not None:
            meter.add(output_processor.request_states[request.request_id])

    output_processor.add_request = metered


_REGISTERED: ContextVar[list[str] | None] = ContextVar("roundhouse_registered", default=None)
"""Internal ids of the engine requests that the current `add_request` has registered."""


def undo_failed(engine: Any) -> None:
    """Make `engine.add_request` abort what it registered, in the slot and in EngineCore, whenever it raises."""
    register, add_request = engine.output_processor.add_request, engine.add_request

    def registered(request: Any, *arguments: Any, **named: Any) -> None:
        register(request, *arguments, **named)
        if (ids := _REGISTERED.get()) is not None:
            ids.append(request.request_id)

    async def added(*arguments: Any, **named: Any) -> Any:
        ids: list[str] = []
        token = _REGISTERED.set(ids)
        try:
            return await add_request(*arguments, **named)
        except BaseException:
            await engine.abort(ids, internal=True)
            raise
        finally:
            _REGISTERED.reset(token)

    engine.output_processor.add_request, engine.add_request = registered, added


def stat_logger() -> Any:
    """Return the logger class of one engine, for starting `AsyncLLM`. It counts once `counts` is set.

    Its series do not include `vllm:lora_requests_info`, which vLLM has with LoRA: it would gain a series for each set
    of digests that ever ran together, and the gateway reports it by the adapters' names.
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
    """Start counting after the warm-up. Until then all series are zero."""
    engine.roundhouse_logger.counts = True


def metrics_text(engine: Any) -> bytes:
    """Return the series that vLLM has registered in this process. Blocks for some milliseconds."""
    from prometheus_client import REGISTRY, generate_latest

    if not engine.output_processor.has_unfinished_requests():  # after an abort no step reports that nothing is running
        idle = import_module("vllm.v1.metrics.stats").SchedulerStats()
        engine.logger_manager.record(idle, None)
    return generate_latest(REGISTRY)
