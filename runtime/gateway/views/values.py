"""Views of models and adapters for HTTP, CLI and console: values without live objects.

The structs are the answers of our own API and appear in the OpenAPI document.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from registry.files.context import Ability, abilities_of
from registry.recipes.definition import Recipe, Task, Tier
from registry.recipes.fields import HubSource
from registry.records import Adapter, AdapterKey, Version
from runtime.residency.entry import ModelEntry
from runtime.residency.policy import NO_LIMIT, Plan, Verdict
from runtime.residency.states import ModelState
from runtime.scheduling.placement import AdapterStatus
from runtime.scheduling.queue import ModelQueue

Count = Annotated[int, Meta(ge=0)]
Digest = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
Tag = Annotated[str, Meta(pattern="^v[1-9][0-9]*$")]
Epoch = Annotated[float, Meta(description="Seconds since the epoch.")]


# --- models ----------------------------------------------------------------------------------------------------------
class ProgressView(msgspec.Struct, frozen=True):
    phase: str
    percent: float
    detail: str


class FailureView(msgspec.Struct, frozen=True):
    message: str
    code: str
    at: Epoch


class ReplicaView(msgspec.Struct, frozen=True):
    number: Annotated[int, Meta(ge=1)]
    state: ModelState
    devices: Annotated[list[str], Meta(description="Where it is.")]
    bytes: Count
    host_bytes: Count
    pid: int | None
    running: Count
    waiting: Count
    deaths: Count


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's model object with what we know beside it."""

    id: str
    object: Literal["model"] = "model"
    created: Count
    owned_by: str
    task: Task
    state: ModelState
    pid: int | None
    tier: Tier
    revision: str
    recipe_version: Count
    engine: str
    aliases: list[str]
    context_length: Count | None
    pinned: bool
    devices: Annotated[list[str], Meta(description="Where it is, such as cuda:0; several: it is spread over them.")]
    bytes: Annotated[int, Meta(ge=0, description="Bytes on the device.")]
    host_bytes: Annotated[int, Meta(ge=0, description="Bytes in host memory beside a GPU; 0 on a CPU.")]
    expected_bytes: Count
    weights_bytes: Count | None
    kv_cache_bytes: Count | None
    expected_load_seconds: float
    can_sleep: Annotated[bool, Meta(description="Whether it would sleep rather than end, if host memory has room.")]
    expected_wake_seconds: float | None
    last_load_seconds: dict[str, float] | None
    last_used: Annotated[Epoch | None, Meta(description="null also where it is not told, as `running`.")]
    running: Annotated[Count | None, Meta(description="null: not told to a key without the scope 'models'.")]
    waiting: Annotated[Count | None, Meta(description="null: as `running`.")]
    loads: Count
    wakes: Count
    deaths: Count
    progress: ProgressView | None
    failure: FailureView | None
    problem: str | None
    adapters: list[str]
    description: str
    replicas: Annotated[
        list[ReplicaView], Meta(description="Where the recipe has several; the rest of the model is about all of them.")
    ] = []
    root: Annotated[
        str | None,
        Meta(description="Its repository on a hub, or else its id; null from a node that does not report it."),
    ] = None
    max_model_len: Annotated[Count | None, Meta(description="vLLM's word for `context_length`.")]
    model_name: Annotated[str, Meta(description="Xinference's words, by which its clients choose their calls.")]
    model_type: Literal["LLM", "embedding", "rerank", "audio"]
    model_ability: list[str]
    model_format: Literal["pytorch"] = "pytorch"


class AdapterCardView(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter in OpenAI's model list, as vLLM shows it: `parent` names the base."""

    id: str
    object: Literal["model"] = "model"
    created: Count
    owned_by: str
    root: str
    parent: Annotated[str, Meta(description="The base model.")]
    task: Task
    digest: Digest
    version: Tag
    context_length: Count | None
    max_model_len: Annotated[Count | None, Meta(description="vLLM's word for `context_length`.")]
    model_name: Annotated[str, Meta(description="Xinference's words, by which its clients choose their calls.")]
    model_type: Literal["LLM", "embedding", "rerank", "audio"]
    model_ability: list[str]
    model_format: Literal["pytorch"] = "pytorch"


XINFERENCE: Mapping[Task, tuple[str, tuple[str, ...]]] = {
    Task.CHAT: ("LLM", ("chat", "generate")),
    Task.EMBED: ("embedding", ("embed",)),
    Task.RERANK: ("rerank", ("rerank",)),
    Task.TRANSCRIBE: ("audio", ("audio2text",)),
}
"""Xinference's model type for each task, and the abilities that every model of the task has."""


def _foreign_fields(entry: ModelEntry) -> dict[str, Any]:
    """Fields of a model or adapter for clients of other servers."""
    kind, can = XINFERENCE[entry.recipe.task]
    more = sorted("reasoning" if one is Ability.THINKING else one for one in abilities_of(entry.recipe, entry.path))
    return {
        "max_model_len": entry.context_length,
        "model_name": entry.model,
        "model_type": kind,
        "model_ability": [*can, *more],
    }


def model_view(entry: ModelEntry, tier: Tier, aliases: Mapping[str, str], adapters: list[str]) -> ModelView:
    """aliases: the aliases of all models, with the model's id."""
    replicas, entry = entry.replicas, entry.lead
    last_used = max(replica.last_used for replica in replicas)
    recipe, loaded, failure, progress = entry.recipe, entry.loaded, entry.failure, entry.progress
    return ModelView(
        id=entry.model,
        created=int(entry.created),
        owned_by=recipe.owned_by,
        task=recipe.task,
        state=entry.state,
        pid=entry.link.pid if entry.link else None,
        tier=tier,
        revision=entry.revision,
        recipe_version=recipe.version,
        engine=recipe.engine.name,
        aliases=sorted(alias for alias, model in aliases.items() if model == entry.model),
        context_length=entry.context_length,
        pinned=entry.pinned,
        devices=list(entry.devices) if entry.bytes else [],
        bytes=sum(replica.bytes for replica in replicas),
        host_bytes=sum(replica.host_bytes for replica in replicas),
        expected_bytes=entry.needed,
        weights_bytes=loaded.weights_bytes if loaded else None,
        kv_cache_bytes=loaded.kv_cache_bytes if loaded else None,
        expected_load_seconds=round(entry.load_seconds, 3),
        can_sleep=entry.asleep is not None,
        expected_wake_seconds=round(entry.wake_seconds, 3) if entry.asleep is not None else None,
        last_load_seconds={k: round(v, 3) for k, v in loaded.seconds.items()} if loaded else None,
        last_used=_epoch(entry, last_used) if last_used else None,
        running=sum(replica.queue.running for replica in replicas),
        waiting=sum(replica.queue.waiting for replica in replicas),
        loads=sum(replica.loads for replica in replicas),
        wakes=sum(replica.wakes for replica in replicas),
        deaths=sum(replica.deaths for replica in replicas),
        replicas=[_replica_view(replica) for replica in replicas] if len(replicas) > 1 else [],
        progress=ProgressView(progress.phase, round(progress.fraction * 100, 1), progress.detail) if progress else None,
        failure=FailureView(failure.cause.message, failure.cause.code, _epoch(entry, failure.at)) if failure else None,
        problem=entry.broken.message if entry.broken else None,
        adapters=adapters,
        description=recipe.description,
        root=recipe.source.hub if isinstance(recipe.source, HubSource) else entry.model,
        **_foreign_fields(entry),
    )


def _epoch(entry: ModelEntry, moment: float) -> float:
    """Convert a time of the entry's clock to seconds since the epoch."""
    return round(time.time() - (entry.clock() - moment), 3)


def _replica_view(entry: ModelEntry) -> ReplicaView:
    return ReplicaView(
        entry.number, entry.state, list(entry.devices) if entry.bytes else [], entry.bytes, entry.host_bytes,
        entry.link.pid if entry.link else None, entry.queue.running, entry.queue.waiting, entry.deaths,
    )  # fmt: skip


# --- plans -----------------------------------------------------------------------------------------------------------
class HostPlanView(msgspec.Struct, frozen=True):
    bytes_needed: Count
    bytes_free: int
    budget_bytes: Count


class VictimView(msgspec.Struct, frozen=True):
    model: str
    bytes: Count
    running: Count
    action: Literal["evict", "drain", "sleep"]


class DeviceRoomView(msgspec.Struct, frozen=True):
    device: str
    bytes_free: int
    budget_bytes: Count


class ReplicaPlanView(msgspec.Struct, frozen=True):
    number: Annotated[int, Meta(ge=1)]
    verdict: Verdict
    why: str
    devices: list[DeviceRoomView]
    victims: list[VictimView]


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a model's first replica; `replicas` has those of all."""

    object: Literal["plan"] = "plan"
    model: str
    verdict: Verdict
    why: str
    devices: Annotated[
        list[DeviceRoomView], Meta(description="Where it would come; several: it would be spread over them.")
    ]
    replicas: Annotated[
        list[ReplicaPlanView],
        Meta(description="Where a load brings several: each as if those before it had come."),
    ]
    bytes_needed: Annotated[int, Meta(ge=0, description="Bytes needed on each device.")]
    bytes_free: int
    budget_bytes: Count
    host: HostPlanView | None
    victims: list[VictimView]
    expected_seconds: float


def plan_view(plan: Plan, *others: Plan) -> PlanView:
    """Build the view from the plan of a model's first replica and those of the others."""
    host = HostPlanView(plan.host_needed, plan.host_free, plan.host_budget)
    return PlanView(
        model=plan.model,
        verdict=plan.verdict,
        why=plan.why,
        devices=_rooms(plan),
        replicas=[
            ReplicaPlanView(number, one.verdict, one.why, _rooms(one), _victims(one))
            for number, one in enumerate((plan, *others) if others else (), 1)
        ],
        bytes_needed=plan.needed,
        bytes_free=plan.free,
        budget_bytes=plan.budget,
        host=None if plan.host_budget == NO_LIMIT else host,
        victims=_victims(plan),
        expected_seconds=round(plan.expected_seconds, 3),
    )


def _rooms(plan: Plan) -> list[DeviceRoomView]:
    return [DeviceRoomView(one.device, one.free, one.budget) for one in plan.room]


def _victims(plan: Plan) -> list[VictimView]:
    return [VictimView(v.id, v.bytes, v.leases, v.action) for v in plan.victims]


# --- adapters --------------------------------------------------------------------------------------------------------
class VersionView(msgspec.Struct, frozen=True):
    version: Tag
    digest: Digest
    rank: int
    bytes: Count
    created: Count
    source: str


class ProbeView(msgspec.Struct, frozen=True):
    """The result of the version's probe after the last commit to the running engine."""

    prompt: str
    expected: str
    state: Literal["unchecked", "passed", "failed"]
    answered: str | None
    checked_at: Epoch | None


class AdapterView(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter: its current version, all versions, aliases, where it is, and how it is used."""

    object: Literal["adapter"] = "adapter"
    name: str
    """The name that the caller writes: `name`, or `team/name`."""
    base: str
    team: str
    shared: bool
    """All teams may use it."""
    version: Tag
    digest: Digest
    rank: int
    bytes: Count
    source: str
    notes: list[str]
    """Notes of the check of the current version."""
    created: Count
    versions: list[VersionView]
    aliases: dict[str, Tag]
    pinned: bool
    tier: Tier
    running: Annotated[Count | None, Meta(description="null: not told to teams that only use it, as the next five.")]
    waiting: Count | None
    hits: Count | None
    misses: Count | None
    evictions: Count | None
    last_used: float | None
    last_stage_seconds: float | None
    last_place_seconds: float | None
    probe: ProbeView | None


def adapter_card(adapter: Adapter, name: str, entry: ModelEntry, version: Version | None = None) -> AdapterCardView:
    """The card of an adapter whose base is on this server. version: see `card_on`."""
    return card_on(adapter, name, entry.recipe, _foreign_fields(entry), version)


def adapter_cards(
    adapters: Sequence[Adapter], spelled: Callable[[AdapterKey], str], entry: ModelEntry
) -> Iterator[AdapterCardView]:
    """Iterate over the cards of a model's adapters."""
    fields = _foreign_fields(entry) if adapters else {}
    return (card_on(adapter, spelled(adapter.key), entry.recipe, fields) for adapter in adapters)


def card_on(
    adapter: Adapter, name: str, base: Recipe, fields: Mapping[str, Any], version: Version | None = None
) -> AdapterCardView:
    """The card of an adapter, with the base's fields for clients of other servers.

    version: the requested version, which the card's id then names. None means the current one.
    """
    version = version or adapter.current
    id_ = name if version.number == adapter.current.number else f"{name}@{version.tag}"
    return AdapterCardView(
        id=id_,
        created=int(adapter.created),
        owned_by=base.owned_by,
        root=str(adapter.key),
        parent=adapter.key.base,
        task=base.task,
        digest=version.digest,
        version=version.tag,
        context_length=fields["max_model_len"],
        **{**fields, "model_name": id_},
    )


def version_view(version: Version) -> VersionView:
    return VersionView(version.tag, version.digest, version.rank, version.bytes, int(version.created), version.source)


def adapter_view(adapter: Adapter, name: str, queue: ModelQueue | None, notes: Sequence[str] = ()) -> AdapterView:
    """name: in the form that the caller uses. queue: its base's; None if the base is not served."""
    current = adapter.current
    status = queue.adapter_status(current.digest) if queue else AdapterStatus("disk", False, 0, 0, 0, 0, 0)
    stats = queue.adapter_stats(current.digest) if queue else None
    return AdapterView(
        name=name,
        base=adapter.key.base,
        team=adapter.key.team,
        shared=adapter.shared,
        version=current.tag,
        digest=current.digest,
        rank=current.rank,
        bytes=current.bytes,
        source=current.source,
        notes=list(notes),
        created=int(adapter.created),
        versions=[version_view(v) for v in adapter.versions],
        aliases={alias: f"v{number}" for alias, number in adapter.aliases.items()},
        pinned=adapter.pinned,
        tier=Tier.DISK if status.tier == "staging" else Tier(status.tier),
        running=status.running,
        waiting=status.waiting,
        hits=status.hits,
        misses=status.misses,
        evictions=status.evictions,
        last_stage_seconds=round(stats.stage_seconds, 4) if stats else None,
        last_place_seconds=round(stats.place_seconds, 4) if stats else None,
        last_used=stats.last_used or None if stats else None,
        probe=_probe_view(current, queue),
    )


def _probe_view(version: Version, queue: ModelQueue | None) -> ProbeView | None:
    probe = version.probe
    if probe is None:
        return None
    result = queue.probe_result(version.digest, probe) if queue else None
    if result is None:
        return ProbeView(probe.prompt, probe.expected, "unchecked", None, None)
    state: Literal["passed", "failed"] = "passed" if result.passed else "failed"
    return ProbeView(probe.prompt, probe.expected, state, result.answered, round(result.at, 3))
