"""One decision, in numbered stages. Each one narrows the targets that are left; those that a router lacks do nothing.

 0. What cannot answer at all is out: unknown, of another task, not for this key, without eyes where there are images,
    elsewhere where the router, or a rule of stage 1, says `stay_inside`.
 1. Rules: the first that holds and names targets decides among these; stages 2 to 4 are passed over.
 2. The conversation: the target that it had so far, while that is left. Where it gets another one, the reason says so.
 3. Intents: above its threshold the likeliest intent's targets are left; below it the router abstains.
 4. Complexity: the cheapest target whose expected acceptance reaches the threshold; where none does, the best.
 5. Nothing has decided: the default target.
 6. Of what is left: within budget before over it, resident before cold, free before loaded, then the cheaper.

A stage that would leave nothing is passed over, and `saw` says so: a target that is out must not cost an answer, as
long as another may give it.
"""

from collections.abc import Sequence

from registry.errors import Forbidden, Unavailable
from registry.wording import quoted
from routing.deciding.preference import order, usable
from routing.decision import Decision
from routing.facts import NOWHERE, Facts
from routing.features import Features, Vector
from routing.intents.model import Acceptance, IntentModel, Told
from routing.routers.router import Router

NO_ROUTE_RETRY = 10.0
"""Seconds after which a target may be there."""
TOP = 3
"""Intents that a decision tells the probabilities of."""


def decide(features: Features, router: Router, facts: Facts) -> Decision:
    """Raises Unavailable (no_route) where no target may answer, Forbidden where the caller may use none."""
    return _Deciding(features, router, facts).decision()


class _Deciding:
    """The state of one decision: what is left, and what was seen."""

    def __init__(self, features: Features, router: Router, facts: Facts) -> None:
        self.features, self.router, self.facts = features, router, facts
        self.spec = router.spec
        self.saw: dict[str, str] = {}
        self.scores: dict[str, float] = {}
        self.left: list[str] = []

    def decision(self) -> Decision:
        reason = self._stages()
        target, *others = order(self.left, self.facts)
        left = self._left(target, reason)
        if others:
            self.saw["chosen_among"] = ", ".join(self.left)
        allowed, _ = usable(self.spec.fallbacks, self.facts, self.features, self.inside)
        return Decision(
            target,
            reason,
            self.scores,
            tuple(others),
            self.saw,
            tuple(name for name in dict.fromkeys(allowed) if name != target),
            self.spec.hedge_after,
            left,
        )

    def _left(self, target: str, reason: str) -> str | None:
        """The target that the conversation had, where it is another one now."""
        held = self.facts.held
        if held is None or held == target:
            return None
        known = held in {one.name for one in self.spec.targets}
        self.saw["left"] = f"{held}: {self.saw.get(f'not:{held}', reason) if known else 'no target any more'}"
        return held

    def _stages(self) -> str:
        rule, inside = self.router.rules.holding(self.features)
        self.inside = self.spec.stay_inside or inside
        names = [target.name for target in self.spec.targets]
        self.left, why_not = usable(names, self.facts, self.features, self.inside)  # 0
        self.saw |= {f"not:{name}": why for name, why in why_not.items()}
        if self.inside:
            self.saw["inside"] = "only what is on this machine"
        if not self.left and not why_not:
            raise Forbidden(
                f"This key may not use {quoted(self.spec.id)}. GET /v1/models lists what it may use.",
                code="model_not_allowed",
                param="model",
            )
        if not self.left:
            told = "; ".join(f"{name}: {why}" for name, why in why_not.items())
            raise Unavailable(
                f"No target of router '{self.spec.id}' may answer this request. {told}.",
                code="no_route",
                retry_after=NO_ROUTE_RETRY,
            )
        if rule is not None and self._narrow(rule.to, f"rule {rule.name}"):  # 1
            return f"rule:{rule.name}"
        if self.facts.held is not None and self._narrow([self.facts.held], "conversation"):  # 2
            return "conversation"
        reason = self._intent() or self._complexity()  # 3, 4
        if reason is not None:
            return reason
        if self.spec.default is not None and self._narrow([self.spec.default], "default"):  # 5
            return "abstained" if "intent" in self.saw else "default"
        return "state"

    def _narrow(self, names: Sequence[str], stage: str) -> bool:
        """Leave only these. False: none of them is left, and nothing has changed."""
        wanted = set(names)
        left = [name for name in self.left if name in wanted]
        if not left:
            told = [name for name in names if self.facts.targets.get(name, NOWHERE).is_allowed]
            self.saw[f"passed:{stage}"] = f"{', '.join(told) or 'what is not for this key'} cannot answer"
            return False
        self.left = left
        return True

    def _vector(self, model: IntentModel | Acceptance) -> Vector | None:
        """None where it is of another model than this one was fitted with."""
        return self.features.vector if model.heads.embedding == self.router.embedding else None

    def _intent(self) -> str | None:
        spec, model = self.spec.intents, self.router.intents
        if spec is None or model is None:
            return None
        told = model.tell(self.features.text, self._vector(model))
        threshold = told.threshold if spec.threshold is None else spec.threshold
        self._saw_intents(told, threshold)
        if told.label is None or told.confidence < threshold:
            return None
        if not self._narrow(spec.routes.get(told.label, ()), f"intent {told.label}"):
            return None
        return f"intent:{told.label}"

    def _saw_intents(self, told: Told, threshold: float) -> None:
        self.scores |= {label: round(p, 4) for label, p in told.likeliest(TOP)}
        if told.label is not None:
            self.scores[told.label] = round(told.confidence, 4)
        self.saw["intent"] = f"{told.label or 'none'} {told.confidence:.3f}, threshold {threshold:.3f}"
        self.saw["features"] = told.features

    def _complexity(self) -> str | None:
        spec, model = self.spec.complexity, self.router.complexity
        if spec is None or model is None:
            return None
        vector = self._vector(model)
        expected = model.expected(self.features.text, vector)
        known = {name: expected[name] for name in self.left if name in expected}
        if not known:
            return None
        self.scores |= {name: round(p, 4) for name, p in known.items()}
        threshold = model.threshold_for(vector) if spec.threshold is None else spec.threshold
        self.saw["complexity"] = f"expected acceptance, threshold {threshold:.3f}"
        enough = [name for name, p in known.items() if p >= threshold]
        if enough:
            least = min(self.facts.targets.get(name, NOWHERE).price for name in enough)
            self.left = [name for name in enough if self.facts.targets.get(name, NOWHERE).price == least]
            return f"enough:{self.left[0]}" if len(self.left) == 1 else "enough"
        best = max(known, key=lambda name: known[name])
        self.left = [best]
        return f"best:{best}"
