"""Exact token counts of a call, from the engine's own request states: for finished, aborted and n > 1 alike.

vLLM's HTTP layer reports usage only with a finished answer. Each engine request that a call starts passes through
`OutputProcessor.add_request` in the call's own context; the state object that it makes holds the prompt's length, the
cached part of it and every output token, and stays readable after the request is gone.
"""

from contextvars import ContextVar
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
        """Internal ids of the engine requests, finished ones included; of several answers, the id of all of them."""
        return list(dict.fromkeys((state.parent_req or state).request_id for state in self._states))

    def usage(self) -> Usage:
        """Prompts count once however many answers (`n`) they have; every sampled token counts."""
        prompts = [state for state in self._states if state.parent_req is None or state.request_index == 0]
        return Usage(
            prompt_tokens=sum(state.prompt_len for state in prompts),
            completion_tokens=sum(state.detokenizer.num_output_tokens() for state in self._states if state.detokenizer),
            cached_tokens=sum(min(max(state.num_cached_tokens, 0), state.prompt_len) for state in prompts),
        )


def meter_requests(output_processor: Any) -> None:
    """Make every request that enters `output_processor` known to the meter of the call it belongs to."""
    add_request = output_processor.add_request

    def metered(request: Any, *args: Any, **kwargs: Any) -> None:
        meter = METER.get()
        if meter is not None and meter.closed:
            raise CallEnded("the client left")
        add_request(request, *args, **kwargs)
        if meter is not None:
            meter.add(output_processor.request_states[request.request_id])

    output_processor.add_request = metered
