"""What is known of a router's targets now."""

from collections.abc import Callable, Mapping

from registry.errors import RoundhouseError
from registry.files.abilities import Ability
from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Task
from registry.recipes.router import RouterSpec, RouterTarget
from routing.facts import Facts, TargetFacts
from runtime.gateway.backend import LOCAL, Target
from runtime.gateway.names import Wanted
from runtime.residency.manager import ResidencyManager
from runtime.scheduling.queue import ModelQueue
from tenants.caller import Caller

Resolve = Callable[[Wanted, Caller], Target]


class Targets:
    def __init__(self, resolve: Resolve, residency: ResidencyManager, queues: Mapping[str, ModelQueue]) -> None:
        self._resolve, self._residency, self._queues = resolve, residency, queues

    def facts(self, router: RouterSpec, caller: Caller, held: str | None) -> Facts:
        return Facts({one.name: self._fact(one, router.task, caller) for one in router.targets}, held)

    def is_resident(self, target: Target) -> bool:
        """It can answer without a load."""
        entry = self._residency.entries.get(target.model) if target.backend == LOCAL else None
        return entry is None or entry.is_ready

    def _fact(self, one: RouterTarget, task: Task, caller: Caller) -> TargetFacts:
        try:
            target = self._resolve(Wanted(task, one.name, written_by=DEFAULT_TEAM), caller)
        except RoundhouseError as error:
            return TargetFacts(usable=False, why_not=error.code)
        is_local = target.backend == LOCAL
        queue = self._queues.get(target.model) if is_local else None
        return TargetFacts(
            is_local=is_local,
            is_resident=self.is_resident(target),
            waiting=0 if queue is None else queue.waiting,
            price=one.price or 0.0,
            takes_images=Ability.VISION in target.abilities,
            calls_tools=Ability.TOOLS in target.abilities,
        )
