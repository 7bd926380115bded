"""This node's reports: its names, its load, how long its requests take, and changes of these."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import NamedTuple, Protocol

import msgspec
from cachetools import LRUCache

from fleet.membership.members import NewMember
from fleet.reports import MAX_ADAPTERS, MAX_REPLICAS, DeviceReport, NodeReport, ReplicaPhase, ReplicaReport, encode
from registry.files.context import abilities_of
from runtime.config.device import Device
from runtime.gateway.local.backend import NAME as LOCAL
from runtime.gateway.models import Models
from runtime.gateway.names import Names
from runtime.gateway.peers.names import MAX_FILES, NodeModel, NodeNames, PeerModel
from runtime.gateway.record import End, RequestRecord
from runtime.gateway.views.values import ModelView
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.states import ModelState

LEARNING_RATE = 0.05
"""Weight of a new value in a running mean."""
FEWEST = 8
"""Fewest requests from which a node's speed is known."""
MOST_MODELS = 256
"""Most models in a report."""
MOST_CACHED = 0.5
"""Largest cached share of a prompt for which the time to the first token counts as prefill time."""
REPORT_SECONDS = 1.0
LOOK_SECONDS = 0.1
"""Seconds between two checks for changes that requests depend on."""
PHASES: dict[ModelState, ReplicaPhase] = {
    ModelState.LOADING: "loading", ModelState.READY: "ready", ModelState.ASLEEP: "asleep",
    ModelState.DRAINING: "draining", ModelState.UNLOADING: "unloading", ModelState.FAILED: "failed",
}  # fmt: skip
"""ABSENT models are not in a report; they are in the node's names."""
NEAREST = (
    ModelState.READY, ModelState.LOADING, ModelState.ASLEEP, ModelState.DRAINING, ModelState.UNLOADING,
    ModelState.FAILED, ModelState.ABSENT,
)  # fmt: skip
"""States ordered by how soon a replica in them can answer."""


class RequestTimes(NamedTuple):
    request: float = 0.0
    """Mean seconds from a request's start to its end. 0 before the first one has ended."""
    prefill: float = 0.0
    """Seconds to read an uncached prompt of mean length. 0 if unknown."""
    token: float = 0.0
    """Mean seconds of a request for each of its tokens. 0 before FEWEST requests have ended."""


class _ModelTimes:
    """Running means for one model: seconds, and prompt tokens of streamed answers."""

    __slots__ = ("count", "prefill", "prompt", "read", "request", "spent", "tokens")

    def __init__(self) -> None:
        self.count = 0
        self.request = self.spent = self.tokens = 0.0
        self.prompt = self.prefill = self.read = 0.0

    def learn(self, seconds: float, tokens: int) -> None:
        """Learn from any answer. The mean for a token has no bias towards the first one, which may be slow."""
        self.request, self.count = _mean(self.request, seconds), self.count + 1
        rate = max(LEARNING_RATE, 1 / self.count)
        self.spent += rate * (seconds - self.spent)
        self.tokens += rate * (tokens - self.tokens)

    def learn_prefill(self, seconds: float, prompt: int, cached: int) -> None:
        """Learn from a streamed answer. The first byte of others arrives only with the last."""
        self.prompt = _mean(self.prompt, prompt)
        if cached <= MOST_CACHED * prompt:
            self.prefill, self.read = _mean(self.prefill, seconds), _mean(self.read, prompt - cached)

    @property
    def times(self) -> RequestTimes:
        prefill = self.prefill * self.prompt / self.read if self.read else 0.0
        token = self.spent / self.tokens if self.count >= FEWEST and self.tokens else 0.0
        return RequestTimes(self.request, prefill, token)


class RequestTimer:
    """The sink from which a node learns how long its models take. Costs a few additions per request."""

    def __init__(self) -> None:
        self._models = LRUCache[str, _ModelTimes](MOST_MODELS)

    def take(self, record: RequestRecord) -> None:
        target, causes, usage = record.target, record.causes, record.usage
        if target is None or target.backend != LOCAL or record.end is not End.DONE or "prefill" not in causes:
            return
        seconds = causes["prefill"] + causes["decode"]
        times = self._models.get(target.model)
        if times is None:
            times = self._models[target.model] = _ModelTimes()
        times.learn(seconds, usage.completion_tokens or usage.prompt_tokens)
        if record.is_stream and usage.prompt_tokens:
            times.learn_prefill(causes["prefill"], usage.prompt_tokens, usage.cached_tokens)

    def times_of(self, model: str) -> RequestTimes:
        times = self._models.get(model)
        return RequestTimes() if times is None else times.times


def _mean(mean: float, value: float) -> float:
    return mean + LEARNING_RATE * (value - mean) if mean else value


class Membership(Protocol):
    """The part of `runtime.gateway.peers.service.Fleet` that reports include."""

    @property
    def own(self) -> NewMember: ...
    @property
    def is_draining(self) -> bool:
        """Whether new requests should go to other nodes."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Whether the server is stopping, which ends the reports."""
        ...

    @property
    def certificate_seconds(self) -> float | None: ...
    @property
    def clock_offset(self) -> float: ...


class Reporter:
    """Writes reports and names. For one event loop.

    Args:
        stored: digests of adapters whose files the node has; a new object after each change.
        times_of: durations of a model's requests here.
    """

    def __init__(
        self,
        fleet: Membership,
        names: Names,
        models: Models,
        residency: ResidencyManager,
        device: Device,
        stored: Callable[[], frozenset[str]],
        times_of: Callable[[str], RequestTimes],
    ) -> None:
        self._fleet, self._names, self._models = fleet, names, models
        self._residency, self._device, self._stored, self._times_of = residency, device, stored, times_of
        self._began, self._seq, self._version = time.monotonic(), 0, version("roundhouse")
        self.boot = 1
        """Set when the server has joined."""

    async def events(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield `names` first and after each change, and `report` once a second and after each change.

        Yields nothing to servers that ask again while this one stops.
        """
        if self._fleet.is_leaving:
            return
        named: tuple[object, ...] = ()
        state, due = named, 0.0
        while True:
            if (now_named := self._named()) != named:
                named = now_named
                yield "names", self.names()
            now_state = self._state()
            if now_state != state or time.monotonic() >= due:
                state, due = now_state, time.monotonic() + REPORT_SECONDS
                yield "report", encode(self.report())
            if self._fleet.is_leaving:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def names(self) -> bytes:
        """This node's names as a line of JSON, without usage figures, which are in reports."""
        models = tuple(
            NodeModel(
                model.recipe.model_dump(mode="json", exclude_defaults=True),
                tuple(sorted(model.abilities)),
                _still(model.view),
            )
            for model in self.models().values()
        )
        return msgspec.json.encode(NodeNames(models, tuple(sorted(self._stored())[:MAX_FILES])))

    def models(self) -> dict[str, PeerModel]:
        """This node's models in the form that other nodes get."""
        models = {}
        for view in self._models.views():
            entry = self._residency.get(view.id)
            if not entry.recipe.is_former:
                models[view.id] = PeerModel(entry.recipe, view.revision, abilities_of(entry.recipe, entry.path), view)
        return models

    def report(self) -> NodeReport:
        self._seq += 1
        adapters = self._adapters()
        entries = [entry for entry in self._residency.entries.values() if entry.lead.state in PHASES]
        entries.sort(key=lambda entry: NEAREST.index(entry.lead.state))
        return NodeReport(
            node=self._fleet.own.name,
            boot=self.boot,
            seq=self._seq,
            uptime=time.monotonic() - self._began,
            version=self._version,
            address=self._fleet.own.address,
            devices=tuple(
                DeviceReport(
                    device=budget.device,
                    label=budget.label,
                    budget=budget.bytes,
                    used=self._residency.table.used_bytes(device=budget.device),
                )
                for budget in self._device.budgets
            ),
            replicas=tuple(_replicas(entry, self._times_of(entry.model)) for entry in entries[:MAX_REPLICAS]),
            placed=tuple(digest for digest, tier in adapters if tier == "device"),
            staged=tuple(digest for digest, tier in adapters if tier == "host"),
            draining=self._fleet.is_draining,
            certificate_seconds=self._fleet.certificate_seconds,
            clock_offset=self._fleet.clock_offset,
        )

    def _adapters(self) -> list[tuple[str, str]]:
        """Digest and tier of each adapter's current version."""
        tiers: dict[str, str] = {}
        for adapter in self._names.everything.adapters():
            entry = self._residency.entries.get(adapter.key.base)
            if entry is not None and len(tiers) < MAX_ADAPTERS:
                digest = adapter.current.digest
                tiers[digest] = entry.queue.adapter_status(digest).tier
        return list(tiers.items())

    def _named(self) -> tuple[object, ...]:
        """Objects that are replaced when names change, so they are cheap to compare."""
        entries = self._residency.entries.values()
        return self._stored(), tuple(
            (entry.recipe, entry.revision, entry.path, entry.broken, entry.lead.state, entry.pinned)
            for entry in entries
        )

    def _state(self) -> tuple[object, ...]:
        """State whose changes are reported immediately."""
        entries = self._residency.entries.values()
        return self._fleet.is_draining, tuple(replica.state for entry in entries for replica in entry.replicas)


def _still(view: ModelView) -> ModelView:
    """The view without the fields that change with each request."""
    return msgspec.structs.replace(
        view, pid=None, last_used=None, running=None, waiting=None, replicas=[], progress=None,
        expected_load_seconds=0.0, adapters=[],
    )  # fmt: skip


def _replicas(entry: ModelEntry, times: RequestTimes) -> ReplicaReport:
    """Summarise all replicas of a model."""
    nearest = min(entry.replicas, key=lambda replica: NEAREST.index(replica.state))
    ready = [replica for replica in entry.replicas if replica.is_ready]
    answering = ready or [nearest]
    start = min((one.queue.admission.start_here() for one in ready), default=nearest.remaining_load_seconds)
    return ReplicaReport(
        model=entry.model,
        revision=entry.revision,
        state=PHASES[nearest.state],
        ready=len(ready),
        capacity=max(1, sum(one.queue.policy.max_requests for one in answering)),
        running=sum(replica.queue.running for replica in entry.replicas),
        waiting=sum(replica.queue.waiting for replica in entry.replicas),
        start_seconds=max(0.0, start),
        prefill_seconds=times.prefill,
        request_seconds=times.request,
        token_seconds=times.token,
        devices=tuple(dict.fromkeys(device for one in ready for device in one.devices)),
    )
