"""A router that is ready to decide: its definition, its models, and which version of it this is."""

import copy
from dataclasses import dataclass, field

from registry.recipes.router import RouterSpec
from routing.deciding.rules import Rules
from routing.intents.model import Acceptance, IntentModel


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    spec: RouterSpec
    tag: str = "v1"
    """Tag of its version, such as 'v1'."""
    digest: str = ""
    intents: IntentModel | None = None
    complexity: Acceptance | None = None
    rules: Rules = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", Rules(self.spec.rules))

    def with_tag(self, tag: str) -> "Router":
        """The same as another version; nothing is compiled once more."""
        renamed_router = copy.copy(self)
        object.__setattr__(renamed_router, "tag", tag)
        return renamed_router

    @property
    def embedding(self) -> str | None:
        """The embedding model that something here was fitted with.

        None: nothing was, or the definition names another model, whose vectors do not fit.
        """
        configured = self.spec.intents.embedding if self.spec.intents else None
        names = [model.heads.embedding for model in (self.intents, self.complexity) if model is not None]
        return next((name for name in names if name is not None and configured in (None, name)), None)

    def read(self, text: str) -> str:
        """What the vector is to be of: as its intents read the text."""
        return text if self.intents is None else self.intents.read(text)

    @property
    def threshold(self) -> float | None:
        """Threshold of its intents, configured or fitted; else of its complexity."""
        if self.spec.intents is not None and self.intents is not None:
            fitted = self.intents.heads.both or self.intents.heads.alone
            return fitted.threshold if self.spec.intents.threshold is None else self.spec.intents.threshold
        if self.spec.complexity is not None and self.complexity is not None:
            configured = self.spec.complexity.threshold
            return self.complexity.threshold if configured is None else configured
        return None

    @property
    def label(self) -> str:
        """`auto@v1`, as answers tell it."""
        return f"{self.spec.id}@{self.tag}"
