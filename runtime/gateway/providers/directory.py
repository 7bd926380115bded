"""Which names mean a provider's model. Models of this machine come first: a name that is one of theirs is theirs."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from registry.catalog import ENDPOINTS
from registry.errors import BadRequest, NotFound
from registry.files.abilities import Ability
from registry.recipes.provider import Provider, ProviderModel
from registry.wording import nearest, quoted
from routing.providers.upstream import Told, Upstream, closing
from runtime.gateway.backend import Target
from runtime.gateway.charging.pricing import price_list
from runtime.gateway.names import LATEST, Names, Wanted, not_allowed
from tenants.caller import Caller


@dataclass(frozen=True, slots=True)
class ProvidedModel:
    """One model, and who answers for it."""

    name: str
    """By which clients ask for it: `provider/id`."""
    upstream: Upstream
    model: ProviderModel


class Directory:
    """`serve` replaces all of it; a provider whose document did not change keeps its connections and breakers."""

    def __init__(self, names: Names, providers: Iterable[Provider], told: Told) -> None:
        self._names, self._told = names, told
        self.upstreams: dict[str, Upstream] = {}
        self._places: Mapping[str, ProvidedModel] = {}
        self._aliases: Mapping[str, ProvidedModel] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self.serve(providers)

    def serve(self, providers: Iterable[Provider]) -> None:
        """These are the providers from now on. What is under way at a former one goes on."""
        before = self.upstreams
        self.upstreams = {}
        for provider in providers:
            kept = before.get(provider.id)
            same = kept is not None and kept.provider == provider
            self.upstreams[provider.id] = kept if kept and same else Upstream(provider, self._told)
        places = [
            ProvidedModel(upstream.provider.served(model), upstream, model)
            for upstream in self.upstreams.values()
            for model in upstream.provider.models
        ]
        self._places = {place.name: place for place in places}
        self._aliases = {alias: place for place in places for alias in place.model.aliases}
        self._names.elsewhere = frozenset((*self._places, *self._aliases))
        for upstream in before.values():
            if upstream not in self.upstreams.values() and upstream.is_open:
                task = asyncio.get_running_loop().create_task(upstream.leave_behind())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        leaving = tuple(self._leaving)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await closing(self.upstreams)

    def places(self, caller: Caller) -> list[ProvidedModel]:
        """Those that the caller may use."""
        return [place for place in self._places.values() if caller.sees(place.name)]

    def find(self, name: object, caller: Caller) -> ProvidedModel | None:
        """None: it is no provider's model, so something here, or nothing. Raises Forbidden."""
        catalog = self._names.catalog.of(caller.team)
        if not isinstance(name, str) or catalog.is_here(name):
            return None
        place = self._places.get(name) or self._aliases.get(name)
        if place is None:
            provider = name.partition("/")[0]
            if provider in self.upstreams and not any(r.startswith(f"{provider}/") for r in catalog.recipes):
                self._unknown(name, caller)
            return None
        if not caller.sees(place.name):
            raise not_allowed(name)
        return place

    def _unknown(self, name: str, caller: Caller) -> None:
        """Raises NotFound, if the caller sees anything of that provider."""
        provider = name.partition("/")[0]
        there = [place.name for place in self.places(caller) if place.upstream.provider.id == provider]
        if there:
            near = nearest(name, there, 5)
            raise NotFound(
                f"Provider '{provider}' has no model {quoted(name)} in its recipe. There are: {', '.join(near)}.",
                param="model",
            )

    def resolve(self, wanted: Wanted, caller: Caller) -> Target | None:
        """As `Gateway.resolve`; None: no provider's. Raises BadRequest for the wrong task or an adapter."""
        name = wanted.name
        if isinstance(name, str) and name not in self._names.elsewhere:
            name = name.removesuffix(LATEST)
        place = self.find(name, caller)
        if place is None:
            return None
        if wanted.adapter:
            raise BadRequest(
                f"'{place.name}' answers elsewhere and takes no adapters of this server.", param="adapter_id"
            )
        task = place.model.task
        if task is not wanted.task:
            raise BadRequest(
                f"Model '{place.name}' is made for {task.value}, and this endpoint for {wanted.task.value}. "
                f"Send the request to {ENDPOINTS[task]}, or name another model.",
                code="wrong_task",
                param="model",
            )
        provider = place.upstream.provider
        abilities = frozenset(Ability(ability) for ability in place.model.abilities)
        return Target(
            str(name), place.name, f"v{provider.version}", backend=provider.id, abilities=abilities,
            price=price_list(place.model.price),
        )  # fmt: skip

    def at(self, target: Target) -> ProvidedModel | None:
        """Where a target is; None: its provider has left meanwhile."""
        place = self._places.get(target.model)
        return place if place is not None and place.upstream.provider.id == target.backend else None
