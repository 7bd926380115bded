"""Resolve a name in a team's request to a model and an adapter.

    name                      means
 1. exact model id            that model (`gpt-oss:120b` too, though it holds a ':')
    model@version             that model in that version of its recipe, while it is served
 2. model alias               the model behind it
 3. adapter[@ref]             that adapter, if only one base has one of this name
 4. base:adapter[@ref]        that adapter on that base (id or alias), split at the last ':'

`adapter` is `name` or `team/name`, `ref` a version (v3), a digest (sha256:…) or one of the
adapter's aliases (prod). Nothing else resolves: an unknown name is an error that lists what exists, never a default.

One team's adapters:

    written      means
    name         the team's own; if it never had one of this name, the one that the team `default` shares
    team/name    that team's adapter, if it is the caller's own team or the adapter is shared

So a name that once was a team's own never comes to mean another team's weights, even after its adapter was deleted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NoReturn

from cachetools import LRUCache

from registry.base.wording import LISTED, nearest, quoted
from registry.errors import BadRequest, Conflict, NotFound
from registry.names import ADAPTER, DEFAULT_TEAM, MODEL, MODEL_RULE, NAME_RULE
from registry.recipes.definition import Recipe, Task
from registry.recipes.fields import origin
from registry.records import Adapter, AdapterKey, UsedNames, Version


class TeamAdapters:
    """The adapters that a team sees. Immutable; `of` returns another team's view in O(1).

    Args:
        ever: names that adapters have or ever had.
        bases: models that are served. Adapters of other bases cannot be named.
    """

    def __init__(self, adapters: Iterable[Adapter], ever: Iterable[AdapterKey], bases: Collection[str]) -> None:
        self.team = DEFAULT_TEAM
        self._sees_all = False
        self._names: dict[str | None, list[str]] = {}
        """Results of `names`: with thousands of adapters they take milliseconds, and any unknown name needs them."""
        self.all = {adapter.key: adapter for adapter in adapters}
        used = ever if isinstance(ever, UsedNames) else UsedNames(ever)
        self.ever = used if used.issuperset(self.all) else UsedNames((*used, *self.all))
        self._named: dict[tuple[str, str], tuple[AdapterKey, ...]] = {}
        for key in self.all:
            if key.base in bases:
                owned = (key.team, key.name)
                self._named[owned] = (*self._named.get(owned, ()), key)

    def of(self, team: str, sees_all: bool = False) -> "TeamAdapters":
        """Return a team's view. sees_all: include what other teams do not share, as for administrators."""
        visible = copy(self)
        visible.team, visible._sees_all, visible._names = team, sees_all, {}
        return visible

    def sees(self, key: AdapterKey) -> bool:
        """Return whether the team may see and use an existing adapter."""
        return self._sees_all or key.team == self.team or self.all[key].shared

    def visible(self, base: str | None = None) -> tuple[Adapter, ...]:
        """Return the adapters that the team sees, on all bases or on one (an id)."""
        return tuple(a for a in self.all.values() if (base is None or a.key.base == base) and self.sees(a.key))

    def find(self, spelling: str, base: str | None = None) -> tuple[AdapterKey, ...]:
        """Return the adapters that a name may mean, on all served bases or on one."""
        team, slash, name = spelling.rpartition("/")
        if slash:
            return self._of(team, name, base)
        existed = self.existed(name, base) if base else (self.team, name) in self.ever.owned
        return self._of(self.team if existed else DEFAULT_TEAM, name, base)

    def existed(self, name: str, base: str) -> bool:
        """Return whether the team itself has or had an adapter of this name."""
        return AdapterKey(base, name, self.team) in self.ever

    def _of(self, team: str, name: str, base: str | None) -> tuple[AdapterKey, ...]:
        keys = self._named.get((team, name), ())
        return tuple(key for key in keys if (base is None or key.base == base) and self.sees(key))

    def spelled(self, key: AdapterKey) -> str:
        """Return the name as the team writes it: `name` or `team/name`."""
        return key.name if key.team == self.team or key in self.find(key.name) else f"{key.team}/{key.name}"

    def names(self, base: str | None = None) -> Sequence[str]:
        """Return the names of served adapters that the team sees, as it writes them.

        In order of registration, because sorting by name and team would reveal hidden ones.
        """
        if (names := self._names.get(base)) is None:
            served = (key for key in self.all if key in self._named.get((key.team, key.name), ()))
            seen = (key for key in served if (base is None or key.base == base) and self.sees(key))
            names = self._names[base] = [self.spelled(key) for key in seen]
        return names

    def without_model(self, spelling: str, base: str | None = None) -> tuple[AdapterKey, ...]:
        """Find adapters whose base is no longer served. They cannot be resolved, but can still be removed."""
        team, _, name = spelling.rpartition("/")
        owned = (team or self.team, name)
        keys = (key for key in self.all if (key.team, key.name) == owned and base in (None, key.base))
        return tuple(key for key in keys if self.sees(key) and key not in self._named.get(owned, ()))

    def is_name(self, spelling: str, base: str | None) -> bool:
        """Return whether any team has an adapter of this name, which new shared names must not reuse."""
        team, slash, name = spelling.rpartition("/")
        return any(
            key.name == name and (not slash or key.team == team) and base in (None, key.base) for key in self.all
        )


VIEWS = 1024
"""Number of team views that are cached."""


@dataclass(frozen=True, slots=True)
class ResolvedName:
    """What a name resolves to. `version` is None exactly if no adapter was named."""

    recipe: Recipe
    adapter_name: str | None = None
    """`AdapterKey.label`, which is the same for every team."""
    version: Version | None = None


class Catalog:
    """An immutable snapshot of models, aliases and adapters, as one team sees it.

    The gateway replaces it when the state changes.

    Args:
        recipes: from `registry.recipes.loading.load_recipes`, which refuses clashes among them.
        adapters: `State.adapters.all()`. Those whose base has no recipe do not resolve.
        aliases: `State.models.aliases()`. Recipes win over them.
        ever: `State.adapters.ever()`, the names that adapters have or ever had.
    """

    def __init__(
        self,
        recipes: Iterable[Recipe],
        adapters: Iterable[Adapter] = (),
        aliases: Mapping[str, str] | None = None,
        ever: Iterable[AdapterKey] = (),
    ) -> None:
        self.recipes: Mapping[str, Recipe] = {recipe.id: recipe for recipe in recipes}
        """Model id to recipe."""
        self._runtime_aliases = dict(aliases or {})
        written = {alias: recipe.id for recipe in self.recipes.values() for alias in recipe.aliases}
        usable = {
            a: model for a, model in self._runtime_aliases.items() if a not in self.recipes and model in self.recipes
        }
        self.aliases: Mapping[str, str] = {**usable, **written}
        """Alias to model id, from recipes and from run time."""
        self._written = frozenset(written)
        self._owned = TeamAdapters(adapters, ever, self.recipes)
        self._views: LRUCache[tuple[str, bool], Catalog] = LRUCache(VIEWS)
        """Team views. All views share this cache."""

    def of(self, team: str, *, all_teams: bool = False) -> "Catalog":
        """Return the catalog as a team sees it. all_teams: as administrators see it."""
        key = (team, all_teams)
        try:
            return self._views[key]
        except KeyError:
            view = self._views[key] = copy(self)
            view._owned = self._owned.of(team, all_teams)
            return view

    @property
    def notes(self) -> tuple[str, ...]:
        """Aliases and adapters in the state that these recipes cannot use, for the log."""
        notes = [
            f"alias '{alias}' for '{model}' is out of use: "
            + ("there is no recipe for that model" if model not in self.recipes else "a recipe has that name")
            for alias, model in self._runtime_aliases.items()
            if self.aliases.get(alias) != model
        ]
        for key, adapter in self._owned.all.items():
            made_for = adapter.current.base_origin
            if key.base not in self.recipes:
                notes.append(f"adapter '{key}' is out of use: there is no recipe for its base")
            elif made_for is not None and made_for != (now := origin(self.recipes[key.base].source)):
                notes.append(f"adapter '{key}' was registered for another base: {made_for}, which is now {now}")
            for name in self._clashing_names(key):
                notes.append(f"'{name}' means the model of that name, and not adapter '{key}': rename one of them")
        return tuple(notes)

    def only(self, sees: Callable[[str, str | None], bool]) -> "Catalog":
        """Return the visible part. sees: takes a model's id and an adapter's name on it."""
        recipes = [recipe for recipe in self.recipes.values() if sees(recipe.id, None)]
        owned = self._owned
        adapters = [a for a in owned.all.values() if sees(a.key.base, None) and sees(a.key.base, owned.spelled(a.key))]
        return Catalog(recipes, adapters, self._runtime_aliases, owned.ever).of(owned.team)

    # --- resolution ------------------------------------------------------------------------------------------------
    def resolve(self, name: str, *tasks: Task) -> ResolvedName:
        """Resolve `name`; with `tasks`, only to a model made for one of them.

        Raises NotFound (model_not_found, adapter_version_not_found), BadRequest (ambiguous_model, wrong_task).
        """
        return _for_tasks(self._find(name), tasks)

    def resolve_pair(self, base: str, adapter: str, *tasks: Task) -> ResolvedName:
        """Resolve a base and an adapter[@ref] given in two fields, as with LoRAX's `adapter_id`.

        Raises as `resolve` does; BadRequest (wrong_task) if the base is for another task, whichever adapter was named.
        """
        name, at, ref = adapter.partition("@")
        recipe = _for_tasks(ResolvedName(self._model(base)), tasks).recipe
        try:
            return self._qualified(recipe.id, name, ref if at else None)
        except NotFound as error:
            error.param = "adapter_id"
            raise

    def model(self, name: str) -> Recipe:
        """Return the model with this id or alias. Raises NotFound for all else, including adapters."""
        recipe = self.recipes.get(name) or self.recipes.get(self.aliases.get(name, ""))
        if recipe is None:
            _unknown(name, "model", [*self.recipes, *self.aliases])
        return recipe

    def _model(self, name: str) -> Recipe:
        """Return a model as `model` does, also by `name@version`, as lines of batches name it."""
        head, at, version = name.partition("@")
        head = self.aliases.get(head, head)
        return (
            self._version(head, version)
            if at and name not in self.recipes and head in self.recipes
            else self.model(name)
        )

    def _find(self, name: str) -> ResolvedName:
        if (recipe := self.recipes.get(name)) is not None:
            return ResolvedName(recipe)
        if (behind := self.aliases.get(name)) is not None:
            return ResolvedName(self.recipes[behind])
        head, at, tail = name.partition("@")
        ref = tail if at else None
        if head in self.recipes or head in self.aliases:
            return ResolvedName(self._version(self.aliases.get(head, head), tail))
        if keys := self._owned.find(head):
            return self._target(_only(head, keys), ref)
        base, colon, adapter = head.rpartition(":")
        base = self.aliases.get(base, base)
        if colon and base in self.recipes:
            return self._qualified(base, adapter, ref)
        _unknown(name, "model or adapter", [*self.recipes, *self.aliases, *self._owned.names()])

    def _version(self, model: str, version: str) -> Recipe:
        """Return the current version of a model, or a former one that is still served."""
        current = self.recipes[model]
        if version == str(current.version):
            return current
        if (former := self.recipes.get(f"{model}@{version}")) is not None:
            return former
        served = [recipe.id for recipe in self.recipes.values() if recipe.id.startswith(f"{model}@")]
        raise NotFound(
            f"Model '{model}' has no version {quoted(version)}. There are: "
            f"{', '.join([*served, f'{model}@{current.version}'])}; '{model}' alone is the newest.",
            code="model_version_not_found",
            param="model",
        )

    def _qualified(self, base: str, adapter: str, ref: str | None) -> ResolvedName:
        keys = self._owned.find(adapter, base)
        if not keys:
            _unknown(adapter, "adapter", self._owned.names(base), on=base)
        return self._target(keys[0], ref)

    def _target(self, key: AdapterKey, ref: str | None) -> ResolvedName:
        return ResolvedName(self.recipes[key.base], key.label, self._owned.all[key].version(ref))

    # --- adapters --------------------------------------------------------------------------------------------------
    def adapter(self, name: str) -> Adapter:
        """Return the adapter of a name, with or without 'base:'; never a model.

        Raises NotFound (adapter_not_found) or BadRequest (ambiguous_model).
        """
        owned = self._owned
        if keys := owned.find(name):
            return owned.all[_only(name, keys)]
        base, colon, spelling = name.rpartition(":")
        base = self.aliases.get(base, base)
        if colon and (matches := owned.find(spelling, base) or owned.without_model(spelling, base)):
            return owned.all[matches[0]]
        if keys := owned.without_model(name):
            return owned.all[_only(name, keys)]
        if name in self.recipes or name in self.aliases:
            raise NotFound(f"'{name}' is a model, not an adapter; see /v1/models/{name}.", code="adapter_not_found")
        _unknown(name, "adapter", owned.names(), code="adapter_not_found")

    def adapters(self, base: str | None = None) -> tuple[Adapter, ...]:
        """Return the adapters that the team sees, on all bases or on one (an id)."""
        return self._owned.visible(base)

    def sees(self, key: AdapterKey) -> bool:
        """Return whether the team may see and use an existing adapter."""
        return self._owned.sees(key)

    def spelled(self, key: AdapterKey) -> str:
        """Return an adapter's name as the team writes it."""
        return self._owned.spelled(key)

    # --- checks of new names -----------------------------------------------------------------------------------------
    def check_adapter(self, key: AdapterKey) -> Recipe:
        """Check that an adapter may be registered under `key`, and return the base's recipe.

        Raises NotFound for an unknown base, BadRequest for a bad name or a base without adapter places, Conflict
        (name_in_use) if its name already means a model, because requests would be answered from other weights.
        """
        recipe = self.model(key.base)
        if not ADAPTER.match(key.name):
            raise BadRequest(f"{quoted(key.name)} is not a valid adapter name: {NAME_RULE}.", param="name")
        if not recipe.memory.adapters.device:
            is_chat = recipe.task is Task.CHAT
            how = "Set memory.adapters.device in its recipe to at least 1" if is_chat else "Only chat models do"
            raise BadRequest(
                f"Model '{recipe.id}' takes no adapters. {how}.",
                code="adapters_not_supported",
                param="base",
            )
        for name in self._clashing_names(key._replace(base=recipe.id)):
            raise Conflict(
                f"'{name}' is a model's name. Choose another name for the adapter.", code="name_in_use", param="name"
            )
        return recipe

    def _clashing_names(self, key: AdapterKey) -> list[str]:
        """Return the spellings of an adapter's name that mean a model, since models take precedence."""
        bases = [key.base, *(alias for alias, model in self.aliases.items() if model == key.base)]
        names = (key.name, f"{key.team}/{key.name}")
        spellings = (*names, *(f"{base}:{name}" for base in bases for name in names))
        return [name for name in spellings if name in self.recipes or name in self.aliases]

    def check_alias(self, alias: str, model: str) -> Recipe:
        """Check that `alias` may be given to `model`, and return the model's recipe.

        Raises NotFound for an unknown model, BadRequest for a bad name, Conflict (name_in_use) if the name is a
        model's id, a recipe's alias, or an adapter's name.
        """
        recipe = self.model(model)
        if not MODEL.match(alias):
            raise BadRequest(f"{quoted(alias)} is not a valid alias: {MODEL_RULE}.", param="alias")
        used = {
            "a model's id": alias in self.recipes,
            "an alias in a recipe": alias in self._written,
            "an adapter's name": self.is_adapter(alias),
        }
        for what, is_used in used.items():
            if is_used:
                raise Conflict(f"'{alias}' is {what} already. Choose another alias.", code="name_in_use", param="alias")
        return recipe

    def is_here(self, name: str) -> bool:
        """Return whether the name means a model or adapter of this machine to the team."""
        head = name.partition("@")[0]
        return name in self.recipes or name in self.aliases or bool(self._owned.find(head))

    def existed(self, name: str) -> bool:
        """Return whether `base:adapter` is an adapter of the team, or was one before it was deleted."""
        base, _, spelling = name.rpartition(":")
        return self._owned.existed(spelling, self.aliases.get(base, base))

    def is_adapter(self, name: str) -> bool:
        """Return whether any team has an adapter of this name, which new shared names must not reuse."""
        base, colon, spelling = name.rpartition(":")
        return self._owned.is_name(spelling, self.aliases.get(base, base) if colon else None)


def _for_tasks(target: ResolvedName, tasks: Collection[Task]) -> ResolvedName:
    if tasks and target.recipe.task not in tasks:
        task = target.recipe.task
        raise BadRequest(
            f"Model '{target.recipe.id}' is made for {task.value}, and this endpoint for "
            f"{' or '.join(t.value for t in tasks)}. Send the request to {task.endpoint}, or name another model.",
            code="wrong_task",
            param="model",
        )
    return target


def _only(name: str, keys: tuple[AdapterKey, ...]) -> AdapterKey:
    if len(keys) > 1:
        full = ", ".join(f"'{key}'" for key in sorted(keys)[:LISTED])
        raise BadRequest(
            f"Several models have an adapter '{name}'. Write which one you mean: {full}.",
            code="ambiguous_model",
            param="model",
        )
    return keys[0]


def _unknown(name: str, what: str, names: Collection[str], *, on: str = "", code: str | None = None) -> NoReturn:
    listed = nearest(name, names)
    hidden = len(names) - len(listed)
    exist = "There are: " + ", ".join(listed) if listed else f"There is no {what} yet"
    raise NotFound(
        f"There is no {what} {quoted(name)}{f' on model {on!r}' if on else ''}. {exist}"
        + (f", and {hidden} more (GET /v1/models lists all)." if hidden else "."),
        code=code,
        param="model",
    )
