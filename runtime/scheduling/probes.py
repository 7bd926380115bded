"""Probes that an adapter must answer before it serves any request.

A version may be registered with a prompt and the beginning of its greedy answer. After each commit to an engine the
prompt is sent once, with the adapter in its place and before any request starts with it. Probes share no prefix cache
with requests and are not counted as usage. Prompts and answers stay out of logs and metrics.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import msgspec
from cachetools import FIFOCache, TTLCache

from adapters.content.faults import shorten
from models import sse
from models.messages import AdapterRef, Chunk, HttpCall, ResponseStart
from registry.errors import EngineFailed, Unavailable
from registry.records import Probe
from runtime.slots import frames
from runtime.slots.link import SlotLink

PROBE_SECONDS = 120.0
"""Long, because in a full engine a probe may have to wait for the longest running request."""
RETRY_SECONDS = 60.0
"""Seconds for which requests are refused after a failed probe; a corrected probe runs at once."""
MOST_RESULTS = 4096
"""Results that are remembered, more than an engine has adapters. A probe whose result was dropped runs again."""
MAX_QUOTED = 200
"""Characters of the expected or actual answer quoted in an error."""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: msgspec.Raw | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one run of a probe.

    `answered`: the greedy answer as far as it was read, or the HTTP status if there was none.
    """

    probe: Probe
    passed: bool
    answered: str
    at: float
    """Seconds since the epoch."""
    until: float
    """Clock seconds until which a failure is remembered."""


class Probes:
    """Results by digest and probe, for commits to the current engine.

    Two names may have the same content but different probes. Each is served or refused by its own probe.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._results: FIFOCache[tuple[str, Probe], ProbeResult] = FIFOCache(MOST_RESULTS)
        self._refused = TTLCache[tuple[str, Probe], ProbeResult](inf, RETRY_SECONDS, timer=clock)
        """Failures that may not be retried yet."""
        self._asking: dict[tuple[str, Probe], asyncio.Task[ProbeResult]] = {}

    def clear(self, digest: str | None = None) -> None:
        """Forget the results of one digest, or all results."""
        for key in [key for key in self._results if digest in (None, key[0])]:
            del self._results[key]
            self._refused.pop(key, None)

    def result(self, digest: str, probe: Probe) -> ProbeResult | None:
        """Return the last result; None if the probe has not run since the commit."""
        return self._results.get((digest, probe))

    def known(self, digest: str, probe: Probe) -> ProbeResult | None:
        """Return the last result if it is still valid; None if the probe must run."""
        result = self.result(digest, probe)
        return result if result is not None and (result.passed or (digest, probe) in self._refused) else None

    def refusal(self, digest: str, probe: Probe | None) -> Unavailable | None:
        """Return why requests under this probe may not use the adapter now.

        None if the probe passed or has not run.
        """
        result = self._refused.get((digest, probe)) if probe is not None else None
        if result is None:
            return None
        return Unavailable(
            f"Adapter {digest[:19]}… was taken out of the engine: its probe must be answered with text that begins "
            f"with {_quoted(result.probe.expected)}, and the answer began with {_quoted(result.answered)}. "
            "Register the right weights, or correct the probe.",
            code="adapter_probe_failed",
            retry_after=max(0.0, result.until - self._clock()),
        )

    async def ask(self, link: SlotLink, adapter: AdapterRef, probe: Probe, priority: int) -> ProbeResult:
        """Run the probe and return its result; concurrent callers share one run.

        priority: see `HttpCall`.
        Raises the engine's error if it fails, EngineFailed (code probe_timeout) if it does not answer in time.
        """
        key = adapter.digest, probe
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._ask(link, adapter, probe, priority))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def _ask(self, link: SlotLink, adapter: AdapterRef, probe: Probe, priority: int) -> ProbeResult:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                status, text = await _question(link, adapter, "/v1/chat/completions", probe, priority)
                if status == 400:  # a base without a chat template can only complete text
                    status, text = await _question(link, adapter, "/v1/completions", probe, priority)
        except TimeoutError:
            raise EngineFailed(
                f"its probe was not answered within {PROBE_SECONDS:.0f} s", code="probe_timeout"
            ) from None
        passed = status == 200 and text.startswith(probe.expected)
        answered = text if status == 200 else f"HTTP {status}"
        result = ProbeResult(probe, passed, answered, time.time(), self._clock() + RETRY_SECONDS)
        self._results[adapter.digest, probe] = result
        if not passed:
            self._refused[adapter.digest, probe] = result
        return result


async def _question(link: SlotLink, adapter: AdapterRef, path: str, probe: Probe, priority: int) -> tuple[int, str]:
    """Return the status and greedy answer; stop reading as soon as pass or fail is certain."""
    prompt: dict[str, object] = {"prompt": probe.prompt}
    if path == "/v1/chat/completions":
        prompt = {"messages": [{"role": "user", "content": probe.prompt}]}
    body = {
        "model": adapter.digest,
        **prompt,
        "temperature": 0,
        "max_tokens": 2 * len(probe.expected.encode()) + 16,  # some tokens have no text
        "cache_salt": secrets.token_hex(8),
        "stream": True,
    }
    request = HttpCall(
        path=path,
        body=msgspec.json.encode(body),
        served=adapter.digest,
        display_name=adapter.digest,
        adapter=adapter,
        priority=priority,
    )
    status, text, reader = 0, "", sse.Reader()
    async with link.call(lambda uid: frames.Call.of(uid, request)) as call:
        async for event in call.events():
            if isinstance(event, ResponseStart):
                status = event.status
            elif isinstance(event, Chunk) and status == 200:
                text += "".join(_text(data) for data in reader.feed(event.data) if data != sse.DONE)
                if len(text) >= len(probe.expected) or not probe.expected.startswith(text):
                    break
    return status, text


def _text(data: bytes) -> str:
    """Return the text that one event adds to the answer. Raises EngineFailed for an error event."""
    event = msgspec.json.decode(data, type=_Event)
    if event.error is not None:
        raise EngineFailed("its probe was not answered", code="probe_broken")
    choice = event.choices[0] if event.choices else _Choice()
    return (choice.delta.content if choice.delta else choice.text) or ""


def _quoted(text: str) -> str:
    return shorten(repr(text), MAX_QUOTED)
