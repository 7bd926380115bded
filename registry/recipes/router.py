"""A router: one name in front of several targets. A document with `kind: router`, or the body of POST /v1/routers."""

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
Label = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\s]+$")]
Hedge = Annotated[Seconds, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
To = tuple[TargetName, ...]
Words = tuple[str, ...]
LONGEST_PATTERN = 500
MEMORY = 1 << 18
"""Bytes of one that is compiled: that takes 2 ms at most. With a MiB some took 60 ms of the loop that feeds streams."""


def compiled(pattern: str) -> re2._Regexp:
    """RE2: linear in the text, whatever the pattern. Raises re2.error."""
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
HeaderName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,64}$")]
CREDENTIALS = frozenset({"api-key", "authorization", "cookie", "proxy-authorization", "x-api-key"})
"""Headers that no pattern sees: by where requests go, whoever defines routers could read other callers' keys."""


def _not_secret(name: str) -> str:
    if name in CREDENTIALS:
        raise PydanticCustomError("secret", "'{name}' holds the caller's key: no rule may look at it", {"name": name})
    return name


SeenHeader = Annotated[HeaderName, AfterValidator(_not_secret)]


class RouterTarget(Strict):
    """A model, adapter or provider's model that may answer."""

    name: TargetName = Field(description="a model, an adapter (`name`, `name@prod`, `base:name`) or a provider's model")
    price: float | None = Field(
        default=None,
        ge=0,
        description="price of a million tokens; left out: by its recipe, half of them in and half out",
    )


class When(Strict):
    """Conditions on a request. All must hold; of a list, one."""

    endpoint: Words = ()
    tools: bool | None = None
    images: bool | None = None
    json_schema: bool | None = None
    longer_than: int | None = Field(default=None, ge=0, description="characters of the whole prompt")
    shorter_than: int | None = Field(default=None, ge=0)
    team: Words = ()
    service_class: Words = ()
    language: Words = Field(default=(), description="of the text, such as en or de")
    headers: Mapping[SeenHeader, Pattern] = Field(
        default_factory=dict, description="name in lower case: a pattern (RE2) that is found in its value"
    )


class Rule(Strict):
    """The first rule that holds and names targets decides. `stay_inside` counts of each rule that holds."""

    name: Label
    when: When = When()
    to: To = ()
    stay_inside: bool = Field(default=False, description="never to what is not on this machine")

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.to and not self.stay_inside:
            raise PydanticCustomError("rule", "say what follows: 'to' or 'stay_inside'")
        return self


class Intents(Strict):
    """The target of each intent. The model knows the intents: `roundhouse routers fit`."""

    routes: Mapping[Label, To] = Field(
        default_factory=dict,
        description="targets of an intent, alike in worth; an intent that is not here abstains",
    )
    embedding: TargetName | None = Field(
        default=None, description="embedding model that is asked for the text's vector while it is resident"
    )
    threshold: Share | None = Field(
        default=None, description="abstain below it; left out: as the model was fitted for its precision"
    )


class Complexity(Strict):
    """The cheapest target that is good enough: whose expected acceptance reaches the threshold."""

    threshold: Share | None = Field(
        default=None, description="expected acceptance that is enough; left out: as the model was fitted"
    )


class Conversation(Strict):
    """A conversation stays with its target, so that the prefix cache is used."""

    stay: Seconds = Field(default=1800.0, description="since its last request; 0: each request for itself")
    header: HeaderName = "x-conversation-id"


class RouterSpec(Strict):
    """A name in front of several targets."""

    id: AdapterName
    version: int = Field(default=1, ge=1, description="the document's own version")
    description: str = ""
    task: Task = Task.CHAT
    targets: tuple[RouterTarget, ...] = Field(min_length=1)
    default: TargetName | None = Field(
        default=None, description="who answers where no stage decides; left out: whichever state and price prefer"
    )
    fallbacks: To = Field(default=(), description="targets that may answer instead, in this order")
    hedge_after: Hedge | None = Field(
        default=None,
        description="has no effect: there are no second attempts beside a late one any more; leave it out",
    )
    stay_inside: bool = False
    rules: tuple[Rule, ...] = ()
    intents: Intents | None = None
    complexity: Complexity | None = None
    conversation: Conversation = Conversation()
    source: AnySource | None = Field(
        default=None, description="folder with what was fitted: intents.safetensors, complexity.safetensors"
    )

    @model_validator(mode="before")
    @classmethod
    def _within(cls, data: Any, info: ValidationInfo) -> Any:
        """Counted before anything is compiled, for definitions that a client sends."""
        if isinstance(info.context, Bounds) and isinstance(data, dict):
            for what, name, count in _counts(data):
                if count > (most := getattr(info.context, name)):
                    text = "{what}: {count}, and at most {most} may be there (bound {name}, see --bounds-factor)"
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
    """The name, bound and length of each list; wrong types count 0."""
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
    yield "targets of one rule or intent", "router_targets", max(len(_many(one)) for one in named)
    words = [one for when in whens for one in when.values() if isinstance(one, list)]
    yield "words of one condition", "router_targets", max(map(len, words), default=0)


def _many(value: object) -> Collection[Any]:
    return value if isinstance(value, list | tuple | dict) else ()
