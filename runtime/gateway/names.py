"""What names mean now: the recipes, with the adapters and aliases that the state holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from registry.catalog import Catalog, Resolved
from registry.errors import BadRequest, NotFound
from registry.recipes.definition import Recipe, Task
from registry.state.database import State


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
        self.catalog = self._read()

    def serve(self, recipes: Sequence[Recipe]) -> None:
        """These are the recipes from now on."""
        self.recipes = tuple(recipes)
        self.refresh()

    def refresh(self) -> None:
        self.catalog = self._read()

    def _read(self) -> Catalog:
        return Catalog(self.recipes, self._state.adapters.all(), self._state.models.aliases())

    def resolve(self, wanted: Wanted) -> tuple[str, Resolved]:
        """The name that was meant, and what it means.

        Raises BadRequest for what is no name or the wrong task, NotFound with what exists.
        """
        name, adapter, task = wanted.name, wanted.adapter, wanted.task
        if wanted.optional and name is None:
            ids = [recipe.id for recipe in self.recipes if recipe.task is task and not recipe.is_former]
            if len(ids) != 1:
                return self._by_adapter(adapter, task) if adapter else self._several(ids, task)
            name = ids[0]
        if not isinstance(name, str) or not name:
            raise BadRequest("Say which model: 'model' must be a string such as 'starter-chat'.", param="model")
        if wanted.tagged:
            name = self.untagged(name)
        if adapter:
            return name, self.catalog.resolve_pair(name, adapter, task)
        return name, self.catalog.resolve(name, task)

    def untagged(self, name: str) -> str:
        """`name` of Ollama's `name:latest`, unless something here has the whole name."""
        bare = name.removesuffix(":latest")
        try:
            self.catalog.resolve(name)
        except NotFound:
            return bare
        return name

    def _by_adapter(self, name: str, task: Task) -> tuple[str, Resolved]:
        found = self.catalog.resolve(name, task)
        if found.version is None:
            raise NotFound(f"'{name}' is a model, not an adapter: name it in 'model'.", param="adapter_id")
        return name, found

    def _several(self, ids: Sequence[str], task: Task) -> tuple[str, Resolved]:
        raise BadRequest(
            f"Say which model: 'model' may be left out only where there is exactly one for {task.value}. "
            f"There are: {', '.join(ids) or 'none'}.",
            param="model",
        )
