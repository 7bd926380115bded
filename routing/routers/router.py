"""A router that is ready to decide: its definition, its models, and which version of it this is."""

from dataclasses import dataclass, field

from registry.recipes.router import RouterSpec
from routing.deciding.rules import Rules
from routing.intents.model import Acceptance, IntentModel


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    spec: RouterSpec
    tag: str = "v1"
    """Of its version, as adapters' versions are called."""
    digest: str = ""
    intents: IntentModel | None = None
    complexity: Acceptance | None = None
    rules: Rules = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", Rules(self.spec.rules))

    @property
    def label(self) -> str:
        """`auto@v1`, as answers tell it."""
        return f"{self.spec.id}@{self.tag}"
