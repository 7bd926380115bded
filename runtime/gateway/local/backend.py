"""The backend for models of this machine: which weights a name means, and a turn in the queue of their model."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from cachetools import LRUCache

from adapters.types import StoredAdapter
from models.messages import AdapterRef, Usage
from models.tasks import TASKS
from models.tasks.chat import ChatPayload
from models.tasks.kind import ANSWER_TOKEN, AUDIO_SECOND, work_of
from registry.errors import Unavailable
from registry.files.context import abilities_of
from registry.recipes.definition import Task
from registry.records import Version
from routing.replicas import Reason, choose, keys_of
from runtime.gateway.backend import LoadProgress, TargetState
from runtime.gateway.local.lease import LocalLease, too_late
from runtime.gateway.metrics import Metrics
from runtime.gateway.names import ModelRef, Names
from runtime.gateway.request import Request
from runtime.gateway.target import LoadPending, Target
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.states import ModelState
from runtime.scheduling.admission import SlotLease, unreachable
from runtime.scheduling.fair import QueueRequest
from tenants.caller import Caller
from tenants.costs.prices import batch_price_list, price_list
from tenants.ledger.rows import BATCH

NAME = "local"
NOT_LOADING = frozenset((ModelState.ABSENT, ModelState.ASLEEP, ModelState.FAILED))
"""States in which no load is under way."""
LEARNING_RATE = 0.1
"""Weight of a new value in a running mean."""
MOST_ADAPTERS = 1024
PROBE_FAILED = "The adapter's probe failed. Only the team that shares it is told more."


def reference(stored: StoredAdapter) -> AdapterRef:
    """Convert a stored adapter to the form that engines take."""
    return AdapterRef(digest=stored.digest, path=str(stored.path), rank=stored.rank, bytes=stored.bytes)


class WorkEstimator:
    """Estimates a request's work for the queue of its model, in the unit of `models.tasks.kind`.

    Running means for one model: work per byte and tokens per answer.
    """

    def __init__(self, task: Task) -> None:
        rates = TASKS[task].work
        self._per_byte, self._most = rates.byte, rates.most_per_byte
        """Work per byte. A text has at most one token per byte; a reranker reads its query with each document."""
        self._answers = LRUCache[str, float](MOST_ADAPTERS)
        self._answer = rates.answer_tokens

    def prompt(self, size: int) -> float:
        """Estimate the work of reading this many bytes; for text, its tokens."""
        return size * self._per_byte

    def work(self, size: int, adapter: str, most_tokens: int | None) -> float:
        answer = self._answers.get(adapter, self._answer)
        return max(
            1.0, self.prompt(size) + ANSWER_TOKEN * (answer if most_tokens is None else min(answer, most_tokens))
        )

    def learn(self, size: int, adapter: str, usage: Usage) -> None:
        read = usage.prompt_tokens + usage.audio_seconds * AUDIO_SECOND
        if not read:
            return  # ended before the engine counted
        if size and read <= size * self._most:  # skips requests with images, whose tokens do not come from text
            self._per_byte += LEARNING_RATE * (read / size - self._per_byte)
        mean = self._answers.get(adapter, self._answer)
        self._answers[adapter] = mean + LEARNING_RATE * (usage.completion_tokens - mean)


class _Facts:
    """A model's facts for targets, computed once per recipe and files."""

    def __init__(self, entry: ModelEntry) -> None:
        recipe = self._recipe = entry.recipe
        self._files = entry.path, entry.revision
        self.abilities = abilities_of(recipe, entry.path)
        self.price, self.batch_price = price_list(recipe.price), batch_price_list(recipe.price)

    def are_of(self, entry: ModelEntry) -> bool:
        """Whether neither recipe nor files have changed since."""
        return self._recipe is entry.recipe and self._files == (entry.path, entry.revision)


class LocalBackend:
    """`runtime.gateway.backend.Backend`. Failures are final, since its queue does the waiting.

    Args:
        stored: finds the files of an adapter's version.
    """

    name = NAME
    retry = relay = None

    def __init__(
        self,
        names: Names,
        residency: ResidencyManager,
        stored: Callable[[Version], StoredAdapter],
        metrics: Metrics,
    ) -> None:
        self._names, self._residency, self._stored, self._metrics = names, residency, stored, metrics
        self._estimators = dict[str, WorkEstimator]()
        self._facts = dict[str, _Facts]()

    # --- names and states -------------------------------------------------------------------------------------------
    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target:
        """Resolve a name. As the last backend, raises NotFound for unknown ones. Raises BadRequest, Forbidden."""
        name, resolved = self._names.resolve(model_ref, caller)
        entry = self._residency.get(resolved.recipe.id)
        facts = self._facts.get(entry.id)
        if facts is None or not facts.are_of(entry):
            facts = self._facts[entry.id] = _Facts(entry)
        return Target(
            name,
            entry.id,
            entry.revision,
            resolved.adapter_name,
            resolved.version,
            NAME,
            abilities=facts.abilities,
            price=facts.price,
            batch_price=facts.batch_price,
            is_strict=entry.recipe.strict,
        )

    def load_progress(self, target: Target) -> LoadProgress | None:
        entry = self._residency.get(target.model).lead
        if entry.is_ready:
            return None
        progress = entry.progress
        return LoadProgress(progress.phase, progress.fraction) if progress else LoadProgress(entry.state.value, 0.0)

    def context_length(self, target: Target) -> int | None:
        return self._residency.get(target.model).lead.context_length

    def state_of(self, target: Target) -> TargetState:
        entry = self._residency.entries.get(target.model)
        if entry is None:
            return TargetState(is_local=True, is_resident=True, waiting=0)
        return TargetState(is_local=True, is_resident=entry.lead.is_ready, waiting=entry.queue.policy.waiting_for_model)

    # --- a turn -----------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def lease(self, request: Request, target: Target) -> AsyncIterator[LocalLease]:
        context, entry = request.context, self._residency.get(target.model)
        loads, is_cold = not entry.lead.is_ready, False
        if loads:
            is_cold = entry.progress is None and entry.state in NOT_LOADING and entry.requested_since is None
            self._metrics.cold.labels(entry.id).inc()
            if context.preference.respond_async:
                self._residency.request_load(entry)
                self._residency.check_given_up(entry)
                raise LoadPending(entry.id, max(1.0, self._residency.expected_wait(entry)))
        adapter = None if target.version is None else reference(self._stored(target.version))
        if (estimator := self._estimators.get(entry.id)) is None:
            estimator = self._estimators[entry.id] = WorkEstimator(entry.recipe.task)
        size = context.hints.size
        queue_request = QueueRequest(
            team=context.caller.team,
            key=context.caller.key or "",
            weight=context.caller.weight,
            service_class=context.service_class,
            work=estimator.work(size, target.label or "", context.hints.most_tokens),
            due=context.begin_by,
            pool=entry.recipe.pool_of(context.service_class.label, estimator.prompt(size)),
            is_line=context.source == BATCH,
        )
        reason: Reason = "only"
        if not loads and len(entry.replicas) > 1:
            entry, reason = self._choose(request, entry, adapter, estimator.prompt(size))
        async with await self._turn(request, target, entry, adapter, queue_request) as turn:
            calls = AsyncExitStack()
            if turn.ticket.replica != entry.number:  # another replica than the chosen one was free first
                entry = next((replica for replica in entry.replicas if replica.number == turn.ticket.replica), entry)
                reason = "free"
            lease = LocalLease(request, target, entry, adapter, turn, calls, reason)
            lease.load_seconds, lease.is_cold = turn.ticket.queued_seconds if loads else 0.0, is_cold
            try:
                async with calls:
                    yield lease
                estimator.learn(size, target.label or "", lease.usage)  # not from requests that were cut off
            finally:
                turn.set_work(work_of(lease.usage))

    def _choose(
        self, request: Request, entry: ModelEntry, adapter: AdapterRef | None, prompt_work: float
    ) -> tuple[ModelEntry, Reason]:
        """Choose a ready replica for a request, with the reason."""
        ready = [replica for replica in entry.replicas if replica.is_ready]
        if len(ready) == 1:
            return ready[0], "only"
        digest = None if adapter is None else adapter.digest
        first = next(iter(request.calls), None)
        body = first.body if isinstance(first, ChatPayload) else None
        keys = keys_of(body, request.context.caller.salt or "", digest)
        states = [one.queue.state(digest) for one in ready]
        position, reason = choose(states, keys, entry.queue.seconds_of(prompt_work))
        return ready[position], reason

    async def _turn(
        self,
        request: Request,
        target: Target,
        entry: ModelEntry,
        adapter: AdapterRef | None,
        queue_request: QueueRequest,
    ) -> SlotLease:
        """Wait for model, turn and adapter, within the client's preferences and deadline."""
        context = request.context
        wait, left = context.preference.wait, context.seconds_left()
        if left is not None:
            wait = min(left, entry.recipe.queue.max_wait if wait is None else wait)
        version = target.version
        try:
            if left == 0.0:
                raise Unavailable("Its deadline passed on its way.")
            expected = 0.0 if left is None or entry.is_ready else self._residency.expected_wait(entry)
            if left is not None and expected > left:
                self._residency.request_load(entry)  # otherwise clients with short deadlines would never get it loaded
                raise unreachable(entry.model, expected, left)
            return await entry.queue.acquire(adapter, wait, version.probe if version else None, claim=queue_request)
        except Unavailable as error:
            if error.code == "adapter_probe_failed" and version and version.key.team != queue_request.team:
                raise Unavailable(PROBE_FAILED, code=error.code, retry_after=error.retry_after) from None
            if context.seconds_left() == 0.0:
                raise too_late(entry.model) from None
            if error.code == "queue_timeout" and not entry.is_ready:
                error.retry_after = max(error.retry_after or 1.0, self._residency.expected_wait(entry))
            raise
