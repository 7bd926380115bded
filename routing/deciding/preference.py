"""Order usable targets by what they cost to call now."""

from collections.abc import Iterable

from routing.facts import UNKNOWN_TARGET, Facts, TargetFacts
from routing.features import Features


def usable(names: Iterable[str], facts: Facts, features: Features, inside: bool) -> tuple[list[str], dict[str, str]]:
    """Targets that can answer this request at all, and why the others cannot that the caller may know of."""
    candidates, why_not = list[str](), dict[str, str]()
    for name in names:
        target = facts.targets.get(name, UNKNOWN_TARGET)
        if not target.is_allowed:
            continue
        if not target.usable:
            why_not[name] = target.why_not
        elif inside and not target.is_local:
            why_not[name] = "not on this machine"
        elif features.images and not target.takes_images:
            why_not[name] = "takes no images"
        elif features.tools and not target.calls_tools:
            why_not[name] = "calls no tools"
        else:
            candidates.append(name)
    return candidates, why_not


def order(names: Iterable[str], facts: Facts) -> list[str]:
    """Within budget before over it, resident before cold, free before loaded, then the cheaper, then the first."""

    def rank(name: str) -> tuple[bool, bool, int, float]:
        target: TargetFacts = facts.targets.get(name, UNKNOWN_TARGET)
        return not target.within_budget, not target.is_resident, target.waiting, target.price

    return sorted(names, key=rank)
