"""A recipe under construction: requested values take precedence, others have a reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from models.engines import DeviceKind
from registry.errors import Unfit
from registry.recipes.definition import Recipe
from registry.recipes.validation import parser_faults, words

REQUESTED = "as you asked"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which the model is to run."""

    kind: DeviceKind
    budget: int
    """Bytes that all models may use together on one device."""
    capability: int | None = None
    """CUDA's compute capability, 90 for 9.0; None for a CPU, or if unknown."""


@dataclass(frozen=True, slots=True)
class DraftValue:
    """A value and its reason. `key`: dotted, as in the recipe."""

    key: str
    value: object
    why: str


@dataclass
class Draft:
    """A draft. `requested`: the client's values, by dotted keys."""

    requested: Mapping[str, object]
    choices: list[DraftValue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def pick(self, key: str, value: object, why: str) -> Any:
        """Choose a value for `key`, and return it or the requested one.

        A proposal is dropped if the client requested `key` or one of its parents.
        """
        if key in self.requested:
            self.choices.append(DraftValue(key, self.requested[key], REQUESTED))
            return self.requested[key]
        if not any(key.startswith(f"{other}.") for other in self.requested):
            self.choices.append(DraftValue(key, value, why))
        return value

    def requested_value(self, key: str) -> object:
        """Return what the client requested for `key`, also in a mapping for one of its parents. None if nothing."""
        parents, missing = key.split("."), list[str]()
        while parents:
            if (above := ".".join(parents)) in self.requested:
                value = self.requested[above]
                for part in missing:
                    value = value.get(part) if isinstance(value, dict) else None
                return value
            missing.insert(0, parents.pop())
        return None

    @property
    def data(self) -> dict[str, Any]:
        """The recipe's plain values."""
        values: dict[str, Any] = {}
        for choice in self.all_choices():
            put(values, choice.key, choice.value)
        return values

    def all_choices(self) -> tuple[DraftValue, ...]:
        chosen_keys = {choice.key for choice in self.choices}
        rest = [DraftValue(key, value, REQUESTED) for key, value in self.requested.items() if key not in chosen_keys]
        return (*self.choices, *rest)

    def recipe(self) -> Recipe:
        """Build the recipe. Raises Unfit with every fault, as for recipe files."""
        return recipe_of(self.data)


def recipe_of(data: Mapping[str, Any]) -> Recipe:
    """Validate plain values as a recipe. Raises Unfit with every fault."""
    faults = [text for _, text in parser_faults(data)]
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        faults = [*(words(details) for details in error.errors(include_url=False)), *faults]
    if faults:
        raise Unfit(f"This is not a recipe: {faults[0]}", faults, code="bad_recipe", param="overrides")
    return recipe


def put(data: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key. Raises Unfit if one of its parents is not a mapping."""
    parts = key.split(".")
    if not all(parts) or len(parts) > 6:
        raise Unfit(f"'{key}' is not a key of a recipe, such as memory.kv_cache.", code="bad_recipe", param="overrides")
    *parents, last = parts
    for part in parents:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            raise Unfit(f"'{key}' does not exist: '{part}' has no parts.", code="bad_recipe", param="overrides")
        data = inner
    data[last] = value
