"""The JSON that our own interface shows of models and adapters."""

import time
from typing import Any

from registry.files.context import context_of
from registry.records import Adapter, Version
from runtime.gateway.core import Gateway
from runtime.residency.entry import ModelEntry
from runtime.residency.policy import Plan
from runtime.residency.victims import NO_LIMIT
from runtime.scheduling.probes import Probes


def model_view(gateway: Gateway, entry: ModelEntry) -> dict[str, Any]:
    """OpenAI's model object with what we know beside it."""
    recipe = entry.recipe
    aliases = sorted(alias for alias, model in gateway.catalog.aliases.items() if model == entry.id)
    loaded, failure = entry.loaded, entry.failure
    queue = gateway.queue(entry)
    return {
        "id": entry.id,
        "object": "model",
        "created": int(entry.created),
        "owned_by": recipe.owned_by,
        "task": recipe.task.value,
        "state": entry.state.value,
        "pid": entry.link.pid if entry.link else None,
        "tier": gateway.tier(entry).value,
        "revision": entry.revision,
        "recipe_version": recipe.version,
        "engine": recipe.engine.name,
        "aliases": aliases,
        "context_length": _context(entry),
        "pinned": entry.pinned,
        "bytes": entry.bytes,
        "host_bytes": entry.host_bytes,
        "expected_bytes": entry.needed,
        "weights_bytes": loaded.weights_bytes if loaded else None,
        "kv_cache_bytes": loaded.kv_cache_bytes if loaded else None,
        "expected_load_seconds": round(entry.load_seconds, 3),
        "can_sleep": entry.asleep is not None,
        "expected_wake_seconds": round(entry.wake_seconds, 3) if entry.asleep is not None else None,
        "last_load_seconds": {k: round(v, 3) for k, v in loaded.seconds.items()} if loaded else None,
        "last_used": round(time.time() - (entry.clock() - entry.last_used), 3) if entry.last_used else None,
        "running": queue.running,
        "waiting": queue.waiting,
        "loads": entry.loads,
        "wakes": entry.wakes,
        "deaths": entry.deaths,
        "progress": None
        if entry.progress is None
        else {
            "phase": entry.progress.phase,
            "percent": round(entry.progress.fraction * 100, 1),
            "detail": entry.progress.detail,
        },
        "failure": None if failure is None else {"message": failure.cause.message, "code": failure.cause.code},
        "problem": entry.broken.message if entry.broken else None,
        "adapters": [a.key.name for a in gateway.catalog.adapters(entry.id)],
        "description": recipe.description,
    }


def _context(entry: ModelEntry) -> int | None:
    """As the engine told; before the first load, and after an unload, as recipe and files say."""
    return (entry.loaded.context_length if entry.loaded else 0) or context_of(entry.recipe, entry.path)


def adapter_card(gateway: Gateway, adapter: Adapter, entry: ModelEntry) -> dict[str, Any]:
    """An adapter in OpenAI's model list, as vLLM shows it: `parent` names the base."""
    return {
        "id": adapter.key.name,
        "object": "model",
        "created": int(adapter.created),
        "owned_by": entry.recipe.owned_by,
        "root": f"{adapter.key.base}:{adapter.key.name}",
        "parent": adapter.key.base,
        "task": entry.recipe.task.value,
        "digest": adapter.current.digest,
        "version": adapter.current.tag,
        "context_length": _context(entry),
    }


def version_view(version: Version) -> dict[str, Any]:
    return {
        "version": version.tag,
        "digest": version.digest,
        "rank": version.rank,
        "bytes": version.bytes,
        "created": int(version.created),
        "source": version.source,
    }


def adapter_view(gateway: Gateway, adapter: Adapter) -> dict[str, Any]:
    """Everything about one adapter: versions, aliases, where it is, and how it is used."""
    entry = gateway.residency.get(adapter.key.base)
    queue = gateway.queue(entry)
    digest = adapter.current.digest
    status = queue.policy.status(digest)
    stats = queue.effects.stats.get(digest)
    return {
        "object": "adapter",
        "name": adapter.key.name,
        "base": adapter.key.base,
        **version_view(adapter.current),
        "created": int(adapter.created),
        "versions": [version_view(v) for v in adapter.versions],
        "aliases": {alias: f"v{number}" for alias, number in adapter.aliases.items()},
        "pinned": adapter.pinned,
        "tier": "disk" if status.tier == "staging" else status.tier,
        "running": status.running,
        "waiting": status.waiting,
        "hits": status.hits,
        "misses": status.misses,
        "evictions": status.evictions,
        "last_stage_seconds": round(stats.stage_seconds, 4) if stats else None,
        "last_place_seconds": round(stats.place_seconds, 4) if stats else None,
        "last_used": stats.last_used or None if stats else None,
        "probe": probe_view(adapter.current, queue.effects.probes),
    }


def probe_view(version: Version, probes: Probes) -> dict[str, Any] | None:
    """The version's probe and what it gave after the last commit to the engine that runs now."""
    if version.probe is None:
        return None
    result = probes.result(version.digest, version.probe)
    return {
        "prompt": version.probe.prompt,
        "expected": version.probe.expected,
        "state": "unchecked" if result is None else "passed" if result.passed else "failed",
        "answered": result.answered if result else None,
        "checked_at": round(result.at, 3) if result else None,
    }


def plan_view(plan: Plan) -> dict[str, Any]:
    return {
        "object": "plan",
        "model": plan.model,
        "verdict": plan.verdict,
        "why": plan.why,
        "bytes_needed": plan.needed,
        "bytes_free": plan.free,
        "budget_bytes": plan.budget,
        "host": None
        if plan.host_budget == NO_LIMIT
        else {
            "bytes_needed": plan.host_needed,
            "bytes_free": plan.host_free,
            "budget_bytes": plan.host_budget,
        },
        "victims": [{"model": v.id, "bytes": v.bytes, "running": v.leases, "action": v.action} for v in plan.victims],
        "expected_seconds": round(plan.expected_seconds, 3),
    }
