"""When empty slots import an engine's libraries ahead of need. The import itself: `models.engines`, in the slot."""

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from models.engines import prewarmed_bytes
from registry.recipes.definition import Recipe
from runtime.residency.states import HOLDS_MEMORY, ModelState
from runtime.residency.table import Table
from runtime.server.device import Device
from runtime.server.settings import Settings
from runtime.slots.pool import SlotPool

EVERY_SECONDS = 0.5


async def keep_warm(pool: SlotPool, table: Table, device: Device) -> NoReturn:
    """For ever: one empty slot with the libraries of each engine that has a model.

    Those of models that are away come first. Of the others, the slot is where a model whose process ends comes back.
    Never while a model loads, which needs the cores; and only in memory that no model holds, host memory beside a GPU.
    A load that needs that memory ends the warm slots that it does not use (`SlotPool.cool`).
    """
    while True:
        for engine in engines_to_prewarm(table):
            if any(entry.state is ModelState.LOADING for entry in table.entries.values()):
                break
            on_cpu = device.kind == "cpu"
            free = device.budget - table.used_bytes() if on_cpu else device.host_budget - table.used_host_bytes()
            room = free - sum(link.prewarmed_bytes for link in pool.prewarmed())
            begun = any(link.prewarmed == engine for link in pool.prewarmed())
            if begun or prewarmed_bytes(engine) <= room:
                await pool.prewarm(engine)
        await asyncio.sleep(EVERY_SECONDS)


def engines_to_prewarm(table: Table) -> list[str]:
    """Engines of models that could be asked for, in the order of the recipes: first of those that are not there."""
    able = [entry for entry in table.entries.values() if entry.broken is None]
    away_first = sorted(able, key=lambda entry: entry.state in HOLDS_MEMORY)
    return list(dict.fromkeys(entry.recipe.engine.name for entry in away_first))


def engines_at_start(settings: Settings, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Engines of models that are loaded at the start: the first slots import them while the gateway comes up."""
    if not settings.prewarm:
        return ()
    at_once = (r.engine.name for r in recipes if r.residency.preload or r.residency.pin)
    return tuple(dict.fromkeys(at_once))[: settings.slots]
