"""A router: one name in front of several targets.

It is a document with `kind: router`, or the body of POST /v1/routers.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Self

import re2
from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from registry.bounds import Bounds
from registry.names import AdapterName
from registry.recipes.definition import Task
from registry.recipes.fields import AnySource, Seconds, Strict

TargetName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,200}$")]
LABEL_PATTERN, HEADER_PATTERN = r"^[^\s]+$", "^[a-z0-9-]{1,64}$"
Label = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=LABEL_PATTERN)]
Share = Annotated[float, Field(ge=0, le=1)]
To = tuple[TargetName, ...]
Words = tuple[str, ...]
LONGEST_PATTERN = 500
MEMORY = 1 << 18
"""Bytes of a compiled pattern, which bounds the time that compiling takes on the event loop."""


def compiled(pattern: str) -> re2._Regexp:
    """Compile a pattern with RE2, which is linear in the text. Raises re2.error."""
    options = re2.Options()
    options.max_mem = MEMORY
    options.log_errors = False
    return re2.compile(pattern, options)


def _linear(pattern: str) -> str:
    if len(pattern) > LONGEST_PATTERN:
        raise PydanticCustomError("pattern", f"write a pattern of at most {LONGEST_PATTERN} characters")
    try:
        compiled(pattern)
    except re2.error as error:
        text = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise PydanticCustomError("pattern", "not a pattern of RE2: {fault}", {"fault": text}) from None
    return pattern


Pattern = Annotated[str, AfterValidator(_linear)]
HeaderName = Annotated[str, StringConstraints(pattern=HEADER_PATTERN)]
CREDENTIALS = frozenset({"api-key", "authorization", "cookie", "proxy-authorization", "x-api-key"})
"""Headers that patterns must not match: authors of routers could infer other callers' keys from the routing."""


def _not_secret(name: str) -> str:
    if name in CREDENTIALS:
        raise PydanticCustomError("secret", "'{name}' holds the caller's key, so no rule may match it", {"name": name})
    return name


SeenHeader = Annotated[HeaderName, AfterValidator(_not_secret)]


class RouterTarget(Strict):
    """A model, adapter or provider's model that may answer."""

    name: TargetName = Field(description="a model, an adapter (`name`, `name@prod`, `base:name`) or a provider's model")
    price: float | None = Field(
        default=None,
        ge=0,
        description="price of a million tokens; default: from its recipe, for half input and half output",
    )
    weight: float = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="its share of the requests for which it and other targets are left, in proportion to theirs",
    )


class When(Strict):
    """Conditions on a request. All must hold; in a list, any one."""

    endpoint: Words = ()
    tools: bool | None = None
    images: bool | None = None
    json_schema: bool | None = None
    longer_than: int | None = Field(default=None, ge=0, description="characters of the whole prompt")
    shorter_than: int | None = Field(default=None, ge=0)
    team: Words = ()
    service_class: Words = ()
    language: Words = Field(default=(), description="language of the text, such as en or de")
    headers: Mapping[SeenHeader, Pattern] = Field(
        default_factory=dict, description="header name in lower case to an RE2 pattern that its value must contain"
    )


class Rule(Strict):
    """The first matching rule with targets decides. `stay_inside` applies if any matching rule sets it."""

    name: Label
    when: When = When()
    to: To = ()
    stay_inside: bool = Field(default=False, description="use only targets on this machine")

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.to and not self.stay_inside:
            raise PydanticCustomError("rule", "say what follows: 'to' or 'stay_inside'")
        return self


class Intents(Strict):
    """Targets of each intent. `roundhouse routers fit` trains the model that recognises intents."""

    routes: Mapping[Label, To] = Field(
        default_factory=dict,
        description="targets of an intent, equally good; for an intent that is not listed the stage abstains",
    )
    embedding: TargetName | None = Field(
        default=None, description="embedding model for the text's vector, used while it is resident"
    )
    threshold: Share | None = Field(
        default=None, description="abstain below this confidence; default: as fitted for the model's precision"
    )


class Complexity(Strict):
    """Choose the cheapest target whose expected acceptance reaches the threshold."""

    threshold: Share | None = Field(default=None, description="sufficient expected acceptance; default: as fitted")


class Conversation(Strict):
    """Keep a conversation on its target, so that the prefix cache is used."""

    stay: Seconds = Field(default=1800.0, description="time since its last request; 0: choose for each request anew")
    header: HeaderName = "x-conversation-id"


class RouterSpec(Strict):
    """A name in front of several targets."""

    id: AdapterName
    version: int = Field(default=1, ge=1, description="the document's own version")
    description: str = ""
    task: Task = Task.CHAT
    targets: tuple[RouterTarget, ...] = Field(min_length=1)
    default: TargetName | None = Field(
        default=None, description="target if no stage decides; default: chosen by state and price"
    )
    fallbacks: To = Field(default=(), description="targets to try instead, in this order")
    stay_inside: bool = False
    rules: tuple[Rule, ...] = ()
    intents: Intents | None = None
    complexity: Complexity | None = None
    conversation: Conversation = Conversation()
    source: AnySource | None = Field(
        default=None, description="folder with the fitted models: intents.safetensors, complexity.safetensors"
    )

    @model_validator(mode="before")
    @classmethod
    def _within(cls, data: Any, info: ValidationInfo) -> Any:
        """Check the bounds of a client's definition before anything is compiled."""
        if isinstance(info.context, Bounds) and isinstance(data, dict):
            for what, name, count in _counts(data):
                if count > (most := getattr(info.context, name)):
                    text = "{what}: {count}, and at most {most} are allowed (bound {name}, see --bounds-factor)"
                    raise PydanticCustomError("bound", text, {"what": what, "count": count, "most": most, "name": name})
        return data

    @model_validator(mode="after")
    def _names_are_targets(self) -> Self:
        names = {target.name for target in self.targets}
        if len(names) != len(self.targets):
            raise PydanticCustomError("targets", "name each target once")
        routes = self.intents.routes.values() if self.intents else ()
        used = [*self.fallbacks, *(n for rule in self.rules for n in rule.to), *(n for to in routes for n in to)]
        for name in [*used, *([self.default] if self.default else [])]:
            if name not in names:
                raise PydanticCustomError("targets", "'{name}' is not among the targets", {"name": name})
        return self


def _counts(data: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield the name, bound and length of each list; a wrong type counts as 0."""
    rules = [rule for rule in _many(data.get("rules")) if isinstance(rule, dict)]
    whens = [when for rule in rules if isinstance(when := rule.get("when"), dict)]
    intents = data.get("intents")
    routes = intents.get("routes") if isinstance(intents, dict) else None
    yield "targets", "router_targets", len(_many(data.get("targets")))
    yield "rules", "router_rules", len(_many(data.get("rules")))
    yield "patterns of headers in all rules", "router_patterns", sum(len(_many(when.get("headers"))) for when in whens)
    yield "intents", "router_intents", len(_many(routes))
    named = [data.get("fallbacks"), *(rule.get("to") for rule in rules)]
    named += routes.values() if isinstance(routes, dict) else ()
    yield "targets of one rule or intent", "router_targets", max(len(_many(names)) for names in named)
    words = [values for when in whens for values in when.values() if isinstance(values, list)]
    yield "words of one condition", "router_targets", max(map(len, words), default=0)


def _many(value: object) -> Collection[Any]:
    return value if isinstance(value, list | tuple | dict) else ()
