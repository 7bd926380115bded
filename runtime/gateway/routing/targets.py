"""What is known of a router's targets now."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from registry.errors import Forbidden, RoundhouseError
from registry.files.abilities import Ability
from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Task
from registry.recipes.router import RouterSpec, RouterTarget
from routing.facts import Facts, TargetFacts
from runtime.gateway.backend import LOCAL, Call, Target
from runtime.gateway.names import ModelRef
from runtime.residency.manager import ResidencyManager
from tenants.caller import EVERYBODY, Caller
from tenants.costs.prices import MILLION, PriceList

Resolve = Callable[[ModelRef, Caller], Target]
Afforded = Callable[[Target], bool]
Budgets = Callable[[Caller, Callable[[int | None], Sequence[Call]]], Afforded]
"""Of a caller and what it asks: whether the budgets of its team and key have room for that at a target."""


class Targets:
    def __init__(self, resolve: Resolve, residency: ResidencyManager, budgets: Budgets) -> None:
        self._resolve, self._residency, self._budgets = resolve, residency, budgets

    def facts(
        self, router: RouterSpec, caller: Caller, current: str | None = None, calls: Sequence[Call] = ()
    ) -> Facts:
        """calls: what the request asks; without any every target is within budget."""
        afforded = self._budgets(caller, lambda _context: calls)
        return Facts({one.name: self._fact(one, router.task, caller, afforded) for one in router.targets}, current)

    def is_resident(self, target: Target) -> bool:
        """It can answer without a load."""
        entry = self._residency.entries.get(target.model) if target.backend == LOCAL else None
        return entry is None or entry.is_ready

    def _fact(self, one: RouterTarget, task: Task, caller: Caller, afforded: Afforded) -> TargetFacts:
        model_ref = ModelRef(task, one.name, written_by=DEFAULT_TEAM)
        try:
            target = self._resolve(model_ref, caller)
        except RoundhouseError as error:
            is_allowed = not isinstance(error, Forbidden) and not self._is_of_another_team(model_ref, caller)
            return TargetFacts(usable=False, why_not=error.code, is_allowed=is_allowed)
        is_local = target.backend == LOCAL
        entry = self._residency.entries.get(target.model) if is_local else None
        return TargetFacts(
            is_local=is_local,
            is_resident=self.is_resident(target),
            waiting=0 if entry is None else entry.queue.waiting,
            price=price_of(target.price) if one.price is None else one.price,
            within_budget=afforded(target),
            takes_images=Ability.VISION in target.abilities,
            calls_tools=Ability.TOOLS in target.abilities,
        )

    def _is_of_another_team(self, model_ref: ModelRef, caller: Caller) -> bool:
        """It is there, and not for this caller's team."""
        if caller.team == DEFAULT_TEAM:
            return False
        with suppress(RoundhouseError):
            self._resolve(model_ref, EVERYBODY)
            return True
        return False


def price_of(price: PriceList | None) -> float:
    """One figure to compare targets of one task by: a million tokens, half of them in; an hour; a thousand pairs."""
    return 0.0 if price is None else ((price.input + price.output) / 2 + price.audio_hour + price.pairs) / MILLION
