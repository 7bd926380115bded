"""Resolve names to recipes, with the state's adapters and aliases."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from registry.base.wording import quoted
from registry.catalog import Catalog, ResolvedName
from registry.errors import BadRequest, Conflict, Forbidden, NotFound, RoundhouseError
from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Recipe, Task
from registry.records import AdapterKey
from registry.state.database import State
from tenants.caller import Caller, Scope

MAX_CATALOGS = 64
"""Maximum number of cached catalogs of restricted keys."""
LATEST = ":latest"
"""Ollama's default tag. Clients that read names from /api/tags also send them to OpenAI's paths."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """The model, adapter and version that a request's body names."""

    task: Task
    name: object = None
    """The name in the body. Refused unless it is a string."""
    adapter: str | None = None
    """The adapter, if the body names it separately (LoRAX's adapter_id)."""
    optional: bool = False
    """Whether the dialect may leave the name out; then the only model of the task is meant."""
    written_by: str | None = None
    """The team that wrote the name, for targets of a router. None means the caller's."""


class Names:
    """Catalogs of names. Call `refresh` after each change of the state.

    `catalog` is a snapshot for team `default`; `everything` has the adapters of all teams, for metrics and status.
    """

    def __init__(self, recipes: Sequence[Recipe], state: State) -> None:
        self.recipes, self._state = tuple(recipes), state
        self.registering = asyncio.Lock()
        """Held from checking that a name is free until the state has it, for model aliases and routers."""
        self.provider_names: frozenset[str] = frozenset()
        """Names and aliases of providers' models, set by `ProviderIndex`."""
        self._limited_catalogs: LRUCache[Caller, Catalog] = LRUCache(MAX_CATALOGS)
        self._labelled_catalog: Catalog | None = None
        self._labels: dict[str, dict[str, str]] = {}
        self.refresh()

    def serve(self, recipes: Sequence[Recipe]) -> None:
        self.recipes = tuple(recipes)
        self.refresh()

    def refresh(self) -> None:
        table = self._state.adapters
        self.catalog = Catalog(self.recipes, table.all(), self._state.models.aliases(), table.ever())
        self.everything = self.catalog.of(DEFAULT_TEAM, all_teams=True)
        self._limited_catalogs.clear()

    # --- what a caller sees -----------------------------------------------------------------------------------------
    def visible_to(self, caller: Caller) -> Catalog:
        """The team's catalog, reduced to what the key may use."""
        if not caller.is_limited:
            return self.catalog.of(caller.team)
        catalog = self._limited_catalogs.get(caller)
        if catalog is None:
            catalog = self._limited_catalogs[caller] = self.catalog.of(caller.team).only(caller.sees)
        return catalog

    def managed_by(self, caller: Caller) -> Catalog:
        """The adapters that the caller may manage: those of its team, or all for an administrator."""
        return self.catalog.of(caller.team, all_teams=Scope.ADMIN in caller.scopes)

    def label_of(self, model: str, digest: str) -> str:
        """The name of a registered adapter with this content, else the beginning of the digest."""
        if self._labelled_catalog is not self.everything:
            self._labelled_catalog, self._labels = self.everything, {}
        if model not in self._labels:
            labels: dict[str, str] = {}
            for adapter in self.everything.adapters(model):
                label, current = adapter.key.label, adapter.current.digest
                for version in adapter.versions:  # another version may have the current one's content
                    labels[version.digest] = label if version.digest == current else f"{label}@{version.tag}"
            self._labels[model] = labels
        return self._labels[model].get(digest, digest[7:15])

    def check_adapter(self, key: AdapterKey) -> Recipe:
        """Check an adapter's name and base. Raises as the catalog, and Conflict (name_in_use)."""
        self.check_not_taken(key.name, "adapter", "name")
        return self.catalog.check_adapter(key)

    def check_model(self, name: str, model: str, param: str, recipes: Iterable[Recipe] = ()) -> None:
        """Check that a model may have this id or new alias.

        recipes: further recipes that are about to be served.

        Raises Conflict (name_in_use) if the name has another meaning: requests would get other weights.
        """
        self.check_not_taken(name, "model", param)
        owners = {recipe.id for recipe in recipes if name in recipe.aliases} | {self.catalog.aliases.get(name, model)}
        used = {
            "a model's id": name in self.catalog.recipes,
            "a model's alias": owners != {model},
            "an adapter's name": self.catalog.is_adapter(name),
        }
        _check_free(name, used, "model", param)

    def check_not_taken(self, name: str, what: str, param: str) -> None:
        """Raises Conflict (name_in_use) if a router or provider model has the name."""
        if name in self.provider_names:
            raise Conflict(
                f"'{name}' is a provider's model. Choose another name for the {what}.", code="name_in_use", param=param
            )
        if self.is_router(name):
            raise Conflict(
                f"'{name}' is a router's name. Choose another name for the {what}, or remove the router: "
                f"roundhouse routers remove {name}.",
                code="name_in_use",
                param=param,
            )

    def check_router(self, name: str) -> None:
        """Raises Conflict (name_in_use) if a model or adapter has the name."""
        used = {
            "a model's id": name in self.catalog.recipes,
            "a model's alias": name in self.catalog.aliases,
            "a provider's model": name in self.provider_names,
            "an adapter's name": self.catalog.is_adapter(name),
        }
        _check_free(name, used, "router", "id")

    def is_router(self, name: str) -> bool:
        """Whether a router has this name (without a version)."""
        return any(router.key.name == name for router in self._state.routers.all())

    def is_model(self, name: str) -> bool:
        """Whether a local or provider model has this id or alias."""
        return name in self.catalog.recipes or name in self.catalog.aliases or name in self.provider_names

    def may_be_registered(self, model_ref: ModelRef) -> bool:
        """Whether a recipe declares an adapter of this name, which is registered during startup."""
        name = str(model_ref.adapter or model_ref.name).removesuffix(LATEST).partition("@")[0].rpartition(":")[2]
        return any(adapter.name == name for recipe in self.recipes for adapter in recipe.adapters)

    def find(self, name: str, caller: Caller) -> ResolvedName:
        """Resolve a caller's name in any task. Raises NotFound, BadRequest, Forbidden."""
        _, resolved = self._resolve_for(
            caller, caller.team, lambda catalog: (name, catalog.resolve(untagged(name, catalog)))
        )
        return resolved

    def model(self, name: str) -> Recipe:
        """The recipe of a model's id, alias or `id@version`, whoever may use it. Raises NotFound, also for adapters."""
        try:
            resolved = self.catalog.resolve(name)
        except NotFound:  # they are listed like models
            if self.is_router(name):
                raise NotFound(f"'{name}' is a router; see /v1/routers/{name}.", code="model_not_found") from None
            if name in self.provider_names:
                raise NotFound(f"'{name}' is a provider's model; see /v1/providers.", code="model_not_found") from None
            raise
        if resolved.version is not None:
            raise NotFound(f"'{name}' is an adapter; see /v1/adapters/{resolved.adapter_name}.", code="model_not_found")
        return resolved.recipe

    def is_here(self, name: str, caller: Caller) -> bool:
        """Whether `find` finds the name, or refuses it for another reason than that it does not exist."""
        try:
            self.find(name, caller)
        except NotFound:
            return False
        except RoundhouseError:
            pass
        return True

    def resolve(self, model_ref: ModelRef, caller: Caller) -> tuple[str, ResolvedName]:
        """Return the name that was meant and what it refers to.

        Raises BadRequest for an invalid name or the wrong task, NotFound with what exists, Forbidden.
        """
        return self._resolve_for(
            caller, model_ref.written_by or caller.team, lambda catalog: self._resolve(catalog, model_ref)
        )

    def _resolve_for(
        self, caller: Caller, team: str, look_up: Callable[[Catalog], tuple[str, ResolvedName]]
    ) -> tuple[str, ResolvedName]:
        """Resolve for a team. A key's patterns only affect errors and ambiguous names."""
        seen = self.catalog.of(caller.team)
        try:
            name, resolved = look_up(seen if team == caller.team else self.catalog.of(team))
        except (NotFound, BadRequest):
            if not caller.is_limited or team != caller.team:
                raise
            return look_up(self.visible_to(caller))
        key = None if resolved.version is None else resolved.version.key
        if key is not None and not seen.sees(key):
            raise NotFound(f"There is no model or adapter {quoted(name)}.", param="model")
        if not caller.sees(resolved.recipe.id, None if key is None else seen.spelled(key)):
            raise not_allowed(name)
        return name, resolved

    def _resolve(self, catalog: Catalog, model_ref: ModelRef) -> tuple[str, ResolvedName]:
        name, adapter, task = model_ref.name, model_ref.adapter, model_ref.task
        if model_ref.optional and name is None:
            recipes = catalog.recipes.values()
            ids = [recipe.id for recipe in recipes if recipe.task is task and not recipe.is_former]
            if len(ids) != 1:
                return self._by_adapter(catalog, adapter, task) if adapter else self._refuse_several(ids, task)
            name = ids[0]
        if not isinstance(name, str) or not name:
            raise BadRequest("Say which model in 'model', as a string: GET /v1/models lists all.", param="model")
        name = untagged(name, catalog)
        if adapter:
            return name, catalog.resolve_pair(name, adapter, task)
        return name, catalog.resolve(name, task)

    def without_tag(self, model_ref: ModelRef) -> object:
        """The name in the body without the tag that Ollama's clients append."""
        name = model_ref.name
        return name.removesuffix(LATEST) if isinstance(name, str) and not self.is_model(name) else name

    def _by_adapter(self, catalog: Catalog, name: str, task: Task) -> tuple[str, ResolvedName]:
        try:
            resolved = catalog.resolve(name, task)
            if resolved.version is None:
                raise NotFound(f"'{name}' is a model, not an adapter: name it in 'model'.")
        except (BadRequest, NotFound) as error:
            error.param = "adapter_id"
            raise
        return name, resolved

    def _refuse_several(self, ids: Sequence[str], task: Task) -> tuple[str, ResolvedName]:
        raise BadRequest(
            f"Say which model: 'model' may be left out only where there is exactly one for {task.value}. "
            f"There are: {', '.join(ids) or 'none'}.",
            param="model",
        )


def _check_free(name: str, used: Mapping[str, bool], what: str, param: str) -> None:
    """Raises Conflict (name_in_use) for the first true value in `used`. what: the thing to be named."""
    for use, taken in used.items():
        if taken:
            raise Conflict(
                f"'{name}' is {use} already. Choose another name for the {what}.", code="name_in_use", param=param
            )


def not_allowed(name: str) -> Forbidden:
    return Forbidden(
        f"This key may not use {quoted(name)}. GET /v1/models lists what it may use.",
        code="model_not_allowed",
        param="model",
    )


def untagged(name: str, catalog: Catalog) -> str:
    """Return `name` for Ollama's `name:latest`, unless the team has or had the full name."""
    if not name.endswith(LATEST) or catalog.existed(name):
        return name
    try:
        catalog.resolve(name)
    except NotFound:
        return name.removesuffix(LATEST)
    return name
