"""One decision, in numbered stages that narrow down the targets.

 0. Targets that cannot answer are excluded: unknown, of another task, not allowed for this key, without vision for
    images, or on another server if the router or a rule of stage 1 says `stay_inside`.
 1. Rules: the first matching rule that names targets leaves only these, and stages 2 to 4 are skipped.
 2. The conversation: keeps its previous target if that is still available. If it changes, the reason says so.
 3. Intents: above its threshold, the targets of the likeliest intent remain; below it, the router abstains.
 4. Complexity: the cheapest target whose expected acceptance reaches the threshold, or else the best one.
 5. If nothing has decided, the default target.
 6. Among the remaining: within budget before over budget; then, if any has a weight, the one that the draw falls on;
    else resident before cold, free before loaded, then the cheaper.

A stage that would leave no target is skipped, and `saw` says so: a request must not fail because of one excluded
target if another can answer.
"""

from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from registry.base.wording import quoted
from registry.errors import BadRequest, Forbidden, Unavailable
from routing.decision import UNKNOWN_TARGET, Decision, Facts, Features, TargetFacts, Vector
from routing.routers.content import Router

if TYPE_CHECKING:
    from routing.intents.model import Acceptance, IntentModel, IntentPrediction

NO_ROUTE_RETRY = 10.0
"""Seconds after which a target may be available."""
NOT_INSIDE, NO_IMAGES, NO_TOOLS = "not on this machine", "does not accept images", "does not call tools"
"""Permanent reasons why a target cannot answer."""
TOP = 3
"""Number of intents whose probabilities a decision includes."""


def decide(features: Features, router: Router, facts: Facts) -> Decision:
    """Return the decision.

    Raises no_route if no target can answer now, BadRequest if none ever takes the request's tools or images, and
    Forbidden if none is allowed.
    """
    return _Deciding(features, router, facts).decision()


class _Deciding:
    """The state of one decision: remaining targets, and observations."""

    def __init__(self, features: Features, router: Router, facts: Facts) -> None:
        self.features, self.router, self.facts = features, router, facts
        self.spec = router.spec
        self.saw: dict[str, str] = {}
        self.scores: dict[str, float] = {}
        self.candidates: list[str] = []

    def decision(self) -> Decision:
        reason = self._stages()
        ordered = order(self.candidates, self.facts)
        if (drawn := self._drawn(ordered)) is not None:
            ordered = [drawn, *(name for name in ordered if name != drawn)]
            reason = "weight" if reason == "state" else reason
        target, *others = ordered
        candidates = self._previous_target(target, reason)
        if others:
            self.saw["chosen_among"] = ", ".join(self.candidates)
        allowed, _ = usable(self.spec.fallbacks, self.facts, self.features, self.inside)
        return Decision(
            target,
            reason,
            self.scores,
            tuple(others),
            self.saw,
            tuple(name for name in dict.fromkeys(allowed) if name != target),
            candidates,
        )

    def _previous_target(self, target: str, reason: str) -> str | None:
        """Return the conversation's previous target if it changed."""
        previous = self.facts.previous
        if previous is None or previous == target:
            return None
        is_target = previous in {target.name for target in self.spec.targets}
        self.saw["left"] = (
            f"{previous}: {self.saw.get(f'not:{previous}', reason) if is_target else 'no longer a target'}"
        )
        return previous

    def _stages(self) -> str:
        rule, inside = self.router.rules.matching(self.features)
        self.inside = self.spec.stay_inside or inside
        names = [target.name for target in self.spec.targets]
        self.candidates, why_not = usable(names, self.facts, self.features, self.inside)  # 0
        self.saw |= {f"not:{name}": why for name, why in why_not.items()}
        if self.inside:
            self.saw["inside"] = "only targets on this machine"
        if not self.candidates and not why_not:
            raise Forbidden(
                f"This key may not use {quoted(self.spec.id)}. GET /v1/models lists what it may use.",
                code="model_not_allowed",
                param="model",
            )
        if not self.candidates:
            reasons = "; ".join(f"{name}: {why}" for name, why in why_not.items())
            whys = {*why_not.values()}
            if whys & {NO_TOOLS, NO_IMAGES} and whys <= {NO_TOOLS, NO_IMAGES, NOT_INSIDE}:  # waiting would not help
                # Ollama's clients retry without tools after these words
                lack = "does not support tools" if NO_TOOLS in whys else "takes no images"
                raise BadRequest(
                    f"Router '{self.spec.id}' {lack}: leave them out, or name another model. {reasons}.",
                    code="unsupported_value",
                    param="tools" if NO_TOOLS in whys else None,
                )
            raise Unavailable(
                f"No target of router '{self.spec.id}' may answer this request. {reasons}.",
                code="no_route",
                retry_after=NO_ROUTE_RETRY,
            )
        if rule is not None and self._narrow(rule.to, f"rule {rule.name}"):  # 1
            return f"rule:{rule.name}"
        if self.facts.previous is not None and self._narrow([self.facts.previous], "conversation"):  # 2
            return "conversation"
        reason = self._intent() or self._complexity()  # 3, 4
        if reason is not None:
            return reason
        if self.spec.default is not None and self._narrow([self.spec.default], "default"):  # 5
            return "abstained" if "intent" in self.saw else "default"
        return "state"

    def _drawn(self, ordered: Sequence[str]) -> str | None:
        """Return the target that the draw falls on, of those within budget; None if none of them has a weight."""
        facts = self.facts.targets
        affordable = {name for name in ordered if facts[name].within_budget == facts[ordered[0]].within_budget}
        weights = {one.name: one.weight for one in self.spec.targets if one.weight and one.name in affordable}
        if len(ordered) == 1 or not weights:
            return None
        self.saw["weights"] = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        self.saw["draw"] = f"{self.features.draw:.4f}"
        edges = list(accumulate(weights.values()))
        return list(weights)[min(bisect(edges, self.features.draw * edges[-1]), len(edges) - 1)]

    def _narrow(self, names: Sequence[str], stage: str) -> bool:
        """Leave only these targets. Returns False without changing anything if none of them remains."""
        chosen = set(names)
        candidates = [name for name in self.candidates if name in chosen]
        if not candidates:
            named = [name for name in names if self.facts.targets.get(name, UNKNOWN_TARGET).is_allowed]
            self.saw[f"passed:{stage}"] = f"{', '.join(named) or 'targets that this key may not use'} cannot answer"
            return False
        self.candidates = candidates
        return True

    def _vector(self, model: "IntentModel | Acceptance") -> "Vector | None":
        """Return the text's vector, or None if the model was fitted with another embedding than the router's."""
        return self.features.vector if model.heads.embedding == self.router.embedding else None

    def _intent(self) -> str | None:
        spec, model = self.spec.intents, self.router.intents
        if spec is None or model is None:
            return None
        prediction = model.predict(self.features.text, self._vector(model))
        threshold = prediction.threshold if spec.threshold is None else spec.threshold
        self._saw_intents(prediction, threshold)
        if prediction.label is None or prediction.confidence < threshold:
            return None
        if not self._narrow(spec.routes.get(prediction.label, ()), f"intent {prediction.label}"):
            return None
        return f"intent:{prediction.label}"

    def _saw_intents(self, prediction: "IntentPrediction", threshold: float) -> None:
        self.scores |= {label: round(p, 4) for label, p in prediction.top(TOP)}
        if prediction.label is not None:
            self.scores[prediction.label] = round(prediction.confidence, 4)
        self.saw["intent"] = f"{prediction.label or 'none'} {prediction.confidence:.3f}, threshold {threshold:.3f}"
        self.saw["features"] = prediction.features

    def _complexity(self) -> str | None:
        spec, model = self.spec.complexity, self.router.complexity
        if spec is None or model is None:
            return None
        vector = self._vector(model)
        expected = model.expected(self.features.text, vector)
        scored = {name: expected[name] for name in self.candidates if name in expected}
        if not scored:
            return None
        self.scores |= {name: round(p, 4) for name, p in scored.items()}
        threshold = model.threshold_for(vector) if spec.threshold is None else spec.threshold
        self.saw["complexity"] = f"expected acceptance, threshold {threshold:.3f}"
        enough = [name for name, p in scored.items() if p >= threshold]
        if enough:
            least = min(self.facts.targets.get(name, UNKNOWN_TARGET).price for name in enough)
            self.candidates = [name for name in enough if self.facts.targets.get(name, UNKNOWN_TARGET).price == least]
            return f"enough:{self.candidates[0]}" if len(self.candidates) == 1 else "enough"
        best = max(scored, key=lambda name: scored[name])
        self.candidates = [best]
        return f"best:{best}"


def usable(names: Iterable[str], facts: Facts, features: Features, inside: bool) -> tuple[list[str], dict[str, str]]:
    """Return the targets that can answer, and why the others cannot, if the caller may know."""
    candidates, why_not = list[str](), dict[str, str]()
    for name in names:
        target = facts.targets.get(name, UNKNOWN_TARGET)
        if not target.is_allowed:
            continue
        if not target.usable:
            why_not[name] = target.why_not
        elif inside and not target.is_local:
            why_not[name] = NOT_INSIDE
        elif features.images and not target.takes_images:
            why_not[name] = NO_IMAGES
        elif features.tools and not target.calls_tools:
            why_not[name] = NO_TOOLS
        else:
            candidates.append(name)
    return candidates, why_not


def order(names: Iterable[str], facts: Facts) -> list[str]:
    """Sort by budget, residency, load, price, then order in the definition."""

    def rank(name: str) -> tuple[bool, bool, int, float]:
        target: TargetFacts = facts.targets.get(name, UNKNOWN_TARGET)
        return not target.within_budget, not target.is_resident, target.waiting, target.price

    return sorted(names, key=rank)
