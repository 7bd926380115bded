"""Names of providers' models. Local models take precedence."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from registry.base.wording import nearest, quoted
from registry.errors import BadRequest, NotFound
from registry.files.context import Ability
from registry.recipes.provider import Provider, ProviderModel
from routing.providers.upstream import OnOutcome, Upstream, closing
from runtime.gateway.names import LATEST, ModelRef, Names, not_allowed
from runtime.gateway.target import Target
from tenants.caller import Caller
from tenants.costs.prices import batch_price_list, price_list

BACKEND = "providers"


@dataclass(frozen=True, slots=True)
class ProvidedModel:
    """A provider's model and the objects for reaching it."""

    name: str
    """The name for clients: `provider/id`."""
    upstream: Upstream
    model: ProviderModel


class ProviderIndex:
    """Providers and their models. `serve` replaces them; unchanged ones keep connections and breakers."""

    def __init__(self, names: Names, providers: Iterable[Provider], on_attempt: OnOutcome) -> None:
        self._names, self._on_attempt = names, on_attempt
        self.upstreams: dict[str, Upstream] = {}
        self._entries: Mapping[str, ProvidedModel] = {}
        self._aliases: Mapping[str, ProvidedModel] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self.serve(providers)

    def serve(self, providers: Iterable[Provider]) -> None:
        """Replace the providers. Running requests at removed ones continue."""
        previous_upstreams = self.upstreams
        self.upstreams = {}
        for provider in providers:
            previous = previous_upstreams.get(provider.id)
            same = previous is not None and previous.provider == provider
            self.upstreams[provider.id] = previous if previous and same else Upstream(provider, self._on_attempt)
        entries = [
            ProvidedModel(upstream.provider.served(model), upstream, model)
            for upstream in self.upstreams.values()
            for model in upstream.provider.models
        ]
        self._entries = {entry.name: entry for entry in entries}
        self._aliases = {alias: entry for entry in entries for alias in entry.model.aliases}
        self._names.provider_names = frozenset((*self._entries, *self._aliases))
        for upstream in previous_upstreams.values():
            if upstream not in self.upstreams.values() and (upstream.is_open or upstream.running):
                task = asyncio.get_running_loop().create_task(upstream.close_when_idle())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        leaving = tuple(self._leaving)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await closing(self.upstreams)

    def entries(self, caller: Caller) -> list[ProvidedModel]:
        """The models that the caller may use."""
        return [entry for entry in self._entries.values() if caller.sees(entry.name)]

    def find(self, name: object, caller: Caller) -> ProvidedModel | None:
        """The provider's model with this name, or None. Raises Forbidden."""
        if not self.upstreams:
            return None
        catalog = self._names.catalog.of(caller.team)
        if not isinstance(name, str) or catalog.is_here(name):
            return None
        entry = self._entries.get(name) or self._aliases.get(name)
        if entry is None:
            provider = name.partition("/")[0]
            if provider in self.upstreams and not any(r.startswith(f"{provider}/") for r in catalog.recipes):
                self._refuse_unknown(name, caller)
            return None
        if not caller.sees(entry.name):
            raise not_allowed(name)
        return entry

    def provider_of(self, name: str, caller: Caller) -> Provider | None:
        """The provider of the model with this name, or None. Raises Forbidden, NotFound."""
        entry = self.find(name, caller)
        return None if entry is None else entry.upstream.provider

    def _refuse_unknown(self, name: str, caller: Caller) -> None:
        """Raises NotFound if the caller may use any model of that provider."""
        provider = name.partition("/")[0]
        available = [entry.name for entry in self.entries(caller) if entry.upstream.provider.id == provider]
        if available:
            near = nearest(name, available, 5)
            raise NotFound(
                f"Provider '{provider}' has no model {quoted(name)} in its recipe. There are: {', '.join(near)}.",
                param="model",
            )

    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target | None:
        """Like `Gateway.resolve`, or None if no provider has the name. Raises BadRequest for task or adapter."""
        name = model_ref.name
        if isinstance(name, str) and name not in self._names.provider_names:
            name = name.removesuffix(LATEST)
        entry = self.find(name, caller)
        if entry is None:
            return None
        if model_ref.adapter:
            raise BadRequest(
                f"'{entry.name}' answers elsewhere and takes no adapters of this server.", param="adapter_id"
            )
        task = entry.model.task
        if task is not model_ref.task:
            raise BadRequest(
                f"Model '{entry.name}' is made for {task.value}, and this endpoint for {model_ref.task.value}. "
                f"Send the request to {task.endpoint}, or name another model.",
                code="wrong_task",
                param="model",
            )
        provider = entry.upstream.provider
        abilities = frozenset(Ability(ability) for ability in entry.model.abilities)
        return Target(
            str(name), entry.name, f"v{provider.version}", backend=BACKEND, provider=provider.id, abilities=abilities,
            price=price_list(entry.model.price), batch_price=batch_price_list(entry.model.price),
        )  # fmt: skip

    def entry_of(self, target: Target) -> ProvidedModel | None:
        """A target's provider entry. None if its provider has been removed."""
        entry = self._entries.get(target.model)
        return entry if entry is not None and entry.upstream.provider.id == target.provider else None


def unknown_provider(name: str, available: Iterable[str]) -> NotFound:
    listed = ", ".join(available) or "none"
    return NotFound(f"There is no provider {quoted(name)}. There are: {listed}.", code="provider_not_found")
