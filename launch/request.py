"""Requests to add a model, and the progress of one. The use case:

    Gateway.additions.add(request: ModelRequest) -> AsyncGenerator[Step | Added, None]
    Gateway.additions.preview(request: ModelRequest) -> Preview          (changes nothing)

Steps come in the order of `Phase`; `waiting` only where a model of its id is being removed and finishes its last
requests, `fetching` as often as the figures change. The last one is `AddedModel`. Errors are
those of `registry.errors`. A consumer that stops early leaves the model as it is: after `added` it
is served and its download goes on; `Additions.cancel` ends that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from registry.recipes.definition import Recipe

Phase = Literal["looking", "waiting", "added", "fetching", "converting"]


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """For what the KV cache is sized: so many requests at once, of so many tokens each."""

    requests: int = 8
    tokens: int = 4096


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model that somebody wants to be served.

    `source`: a folder (absolute), `org/name[@revision]` of a hub, `package:NAME[/inside]`.
    """

    source: str
    id: str | None = None
    """None: from the source's name."""
    revision: str | None = None
    """Revision of a hub's repository where the source names none; None: its main branch."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Keys of the recipe with dots (`memory.kv_cache`), and their values."""
    working_set: WorkingSet = WorkingSet()


@dataclass(frozen=True, slots=True)
class Step:
    """How far it is. `total` is None where it is not known."""

    phase: Phase
    model: str = ""
    completed: int = 0
    """Bytes, of files that come from a hub."""
    total: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AddedModel:
    """The end: the model's files are here and it is served; the first request loads it."""

    recipe: Recipe
    new: bool
    """False: the same model was there already, and nothing was changed."""
