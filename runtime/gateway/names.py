"""What names mean now: the recipes, with the adapters and aliases that the state holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from registry.catalog import Catalog, Resolved
from registry.errors import BadRequest, Forbidden, NotFound
from registry.recipes.definition import Recipe, Task
from registry.state.database import State
from registry.wording import quoted
from tenants.caller import Caller

SEEN = 64
"""Catalogs of limited keys that are kept."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request's body says of the model that is to answer."""

    task: Task
    name: object = None
    """As it stands in the body; whatever is no name is refused."""
    adapter: str | None = None
    """Named beside the model (LoRAX's adapter_id)."""
    optional: bool = False
    """Where the dialect has no name for a model, the only one of its task is meant."""
    tagged: bool = False
    """As Ollama names models: `name:latest` means `name`."""


class Names:
    """`catalog` is a snapshot: whoever changes the state calls `refresh`."""

    def __init__(self, recipes: Sequence[Recipe], state: State) -> None:
        self.recipes, self._state = tuple(recipes), state
        self._seen: LRUCache[Caller, Catalog] = LRUCache(SEEN)
        self.catalog = self._read()

    def serve(self, recipes: Sequence[Recipe]) -> None:
        """These are the recipes from now on."""
        self.recipes = tuple(recipes)
        self.refresh()

    def refresh(self) -> None:
        self.catalog = self._read()
        self._seen.clear()

    def _read(self) -> Catalog:
        return Catalog(self.recipes, self._state.adapters.all(), self._state.models.aliases())

    # --- what a caller sees -----------------------------------------------------------------------------------------
    def seen_by(self, caller: Caller) -> Catalog:
        """The catalog without what its key may not use."""
        if not caller.is_limited:
            return self.catalog
        found = self._seen.get(caller)
        if found is None:
            found = self._seen[caller] = self.catalog.only(caller.sees)
        return found

    def find(self, name: str, caller: Caller) -> Resolved:
        """What a name means for a caller, whatever the task. Raises NotFound, BadRequest, Forbidden."""
        return self._for(caller, lambda catalog: (name, catalog.resolve(name)))[1]

    def resolve(self, wanted: Wanted, caller: Caller) -> tuple[str, Resolved]:
        """The name that was meant, and what it means.

        Raises BadRequest for what is no name or the wrong task, NotFound with what exists, Forbidden.
        """
        return self._for(caller, lambda catalog: self._resolve(catalog, wanted))

    def _for(self, caller: Caller, look: Callable[[Catalog], tuple[str, Resolved]]) -> tuple[str, Resolved]:
        """The same weights for everybody, or none: only errors and ambiguities depend on what the caller sees."""
        try:
            name, found = look(self.catalog)
        except (NotFound, BadRequest):
            if not caller.is_limited:
                raise
            return look(self.seen_by(caller))
        if not caller.sees(found.recipe.id, found.adapter_name):
            raise Forbidden(
                f"This key may not use {quoted(name)}. GET /v1/models lists what it may use.",
                code="model_not_allowed",
                param="model",
            )
        return name, found

    def _resolve(self, catalog: Catalog, wanted: Wanted) -> tuple[str, Resolved]:
        name, adapter, task = wanted.name, wanted.adapter, wanted.task
        if wanted.optional and name is None:
            here = catalog.recipes.values()
            ids = [recipe.id for recipe in here if recipe.task is task and not recipe.is_former]
            if len(ids) != 1:
                return self._by_adapter(catalog, adapter, task) if adapter else self._several(ids, task)
            name = ids[0]
        if not isinstance(name, str) or not name:
            raise BadRequest("Say which model: 'model' must be a string such as 'starter-chat'.", param="model")
        if wanted.tagged:
            name = self.untagged(name)
        if adapter:
            return name, catalog.resolve_pair(name, adapter, task)
        return name, catalog.resolve(name, task)

    def bare(self, wanted: Wanted) -> object:
        """The name as it stands in the body, without the tag that Ollama's clients write."""
        name = wanted.name
        return name.removesuffix(":latest") if wanted.tagged and isinstance(name, str) else name

    def untagged(self, name: str) -> str:
        """`name` of Ollama's `name:latest`, unless something here has the whole name."""
        bare = name.removesuffix(":latest")
        try:
            self.catalog.resolve(name)
        except NotFound:
            return bare
        return name

    def _by_adapter(self, catalog: Catalog, name: str, task: Task) -> tuple[str, Resolved]:
        found = catalog.resolve(name, task)
        if found.version is None:
            raise NotFound(f"'{name}' is a model, not an adapter: name it in 'model'.", param="adapter_id")
        return name, found

    def _several(self, ids: Sequence[str], task: Task) -> tuple[str, Resolved]:
        raise BadRequest(
            f"Say which model: 'model' may be left out only where there is exactly one for {task.value}. "
            f"There are: {', '.join(ids) or 'none'}.",
            param="model",
        )
