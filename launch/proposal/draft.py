"""A recipe under construction: requested values win, all others have a reason."""

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
    """CUDA's compute capability, 90 for 9.0; None: a CPU, or the driver does not tell."""


@dataclass(frozen=True, slots=True)
class DraftValue:
    """One value and why it is so. `key`: with dots, as in the recipe."""

    key: str
    value: object
    why: str


@dataclass
class Draft:
    """`requested` maps keys with dots to the values that the client requested."""

    requested: Mapping[str, object]
    choices: list[DraftValue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def pick(self, key: str, value: object, why: str) -> Any:
        """The value that counts: a requested one of `key`, its parent or a child first."""
        if key in self.requested:
            self.choices.append(DraftValue(key, self.requested[key], REQUESTED))
            return self.requested[key]
        if not any(key.startswith(f"{other}.") for other in self.requested):
            self.choices.append(DraftValue(key, value, why))
        return value

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
        """Raises Unfit with every fault, in the words of recipe files."""
        return recipe_of(self.data)


def recipe_of(data: Mapping[str, Any]) -> Recipe:
    """Plain values as a recipe. Raises Unfit with every fault."""
    faults = [text for _, text in parser_faults(data)]
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        faults = [*(words(one) for one in error.errors(include_url=False)), *faults]
    if faults:
        raise Unfit(f"This is not a recipe: {faults[0]}", faults, code="bad_recipe", param="overrides")
    return recipe


def put(data: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key. Raises Unfit where a part on the way is not a mapping."""
    parts = key.split(".")
    if not all(parts) or len(parts) > 6:
        raise Unfit(
            f"'{key}' is not a key of a recipe, such as memory.kv_cache.",
            code="bad_recipe",
            param="overrides",
        )
    *way, last = parts
    for part in way:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            raise Unfit(f"'{key}' does not exist: '{part}' has no parts.", code="bad_recipe", param="overrides")
        data = inner
    data[last] = value
