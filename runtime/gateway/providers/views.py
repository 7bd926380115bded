"""Views of providers: their models in OpenAI's list, and their state. They never contain keys."""

import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from registry.base.json import NOT_JSON
from registry.errors import RoundhouseError
from registry.recipes.definition import Task
from routing.providers.breaker import Phase
from routing.providers.connection import key_of
from routing.providers.pass_through import is_other_model
from routing.providers.upstream import Upstream
from runtime.gateway.metrics import Metrics
from runtime.gateway.providers.index import ProvidedModel, ProviderIndex, unknown_provider
from runtime.gateway.views.values import Count
from tenants.caller import Caller

STATES = {Phase.CLOSED: 0.0, Phase.HALF_OPEN: 0.5, Phase.OPEN: 1.0}


class ProviderCardView(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's model in OpenAI's model list."""

    id: str
    object: Literal["model"] = "model"
    created: Count
    owned_by: Annotated[str, Meta(description="The provider's id.")]
    root: Annotated[str, Meta(description="The provider's own name for it.")]
    task: Task
    aliases: list[str]
    context_length: Count | None
    abilities: list[str]
    description: str


class BreakerView(msgspec.Struct, frozen=True):
    id: str
    state: Literal["closed", "open", "half_open"]
    seconds: Annotated[float, Meta(description="Seconds until an open one lets a request through.")]
    failures_in_a_row: Count


class ProviderView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["provider"] = "provider"
    protocol: Literal["openai", "anthropic"]
    base_url: str
    key_is_set: Annotated[bool, Meta(description="Whether its key is there, or it needs none.")]
    running: Count
    connections: Count
    models: list[BreakerView]


class ProviderListView(msgspec.Struct, frozen=True):
    data: list[ProviderView]
    object: Literal["list"] = "list"


class ProviderCheckView(msgspec.Struct, frozen=True):
    """`seconds`: until it had listed its models. `missing`: models of the recipe that it did not list."""

    id: str
    ok: bool
    seconds: float
    message: str
    missing: list[str]


class _ModelName(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ModelName]


class Providers:
    """Use cases of providers, for HTTP and the command line."""

    def __init__(self, index: ProviderIndex, metrics: Metrics) -> None:
        self._index, self._metrics = index, metrics

    def cards(self, caller: Caller) -> list[ProviderCardView]:
        return [card(entry) for entry in self._index.entries(caller)]

    def card(self, name: str, caller: Caller) -> ProviderCardView | None:
        """A provider model's card, or None if no provider has it. Raises Forbidden, NotFound."""
        entry = self._index.find(name, caller)
        return None if entry is None else card(entry)

    def views(self) -> ProviderListView:
        return ProviderListView([view(upstream) for upstream in self._index.upstreams.values()])

    def measure(self) -> None:
        """Update the gauges before they are exported."""
        self._metrics.provider_running.clear()  # without the providers that are gone
        self._metrics.provider_state.clear()
        for upstream in self._index.upstreams.values():
            id_ = upstream.provider.id
            self._metrics.provider_running.labels(id_).set(upstream.running)
            for name, state in upstream.breakers.items():
                self._metrics.provider_state.labels(id_, name).set(STATES[state.phase])

    async def check(self, name: str) -> ProviderCheckView:
        """List the provider's models, to check that it answers, accepts the key and has the recipe's models."""
        upstream = self._index.upstreams.get(name)
        if upstream is None:
            raise unknown_provider(name, self._index.upstreams)
        began = time.monotonic()
        try:
            listed = msgspec.json.decode(await (await upstream.connect()).models(), type=_ModelList | list[_ModelName])
        except RoundhouseError as error:
            return ProviderCheckView(name, False, round(time.monotonic() - began, 3), error.message, [])
        except NOT_JSON:
            return ProviderCheckView(name, False, round(time.monotonic() - began, 3), "It tells no list of models.", [])
        has = {
            one.id for one in (listed.data if isinstance(listed, _ModelList) else listed)
        }  # Together returns a bare list
        names = (model.name for model in upstream.provider.models)
        missing = [
            name for name in names if all(is_other_model(name, one) for one in has)
        ]  # some providers list only dated names
        message = f"It has {len(has)} models."
        return ProviderCheckView(name, not missing, round(time.monotonic() - began, 3), message, missing)


def card(entry: ProvidedModel) -> ProviderCardView:
    model = entry.model
    return ProviderCardView(
        id=entry.name,
        created=0,
        owned_by=entry.upstream.provider.id,
        root=model.name,
        task=model.task,
        aliases=list(model.aliases),
        context_length=model.context_length,
        abilities=list(model.abilities),
        description=model.description,
    )


def view(upstream: Upstream) -> ProviderView:
    provider, now = upstream.provider, time.monotonic()
    breakers = [
        BreakerView(
            provider.served(model),
            state.phase.value,
            round(max(0.0, state.until - now), 1) if state.phase is Phase.OPEN else 0.0,
            state.run,
        )
        for model in provider.models
        if (state := upstream.breakers[model.name])
    ]
    return ProviderView(
        id=provider.id,
        protocol=provider.protocol.value,
        base_url=provider.base_url,
        key_is_set=not (provider.key_env or provider.key_file) or bool(key_of(provider)),
        running=upstream.running,
        connections=provider.connections,
        models=breakers,
    )
