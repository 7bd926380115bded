"""Names that nodes have: their recipes as one catalog, with the adapters and aliases that the fleet shares.

| two nodes differ in          | what counts                                                                        |
|------------------------------|------------------------------------------------------------------------------------|
| a model's recipe or revision | the newest recipe version, then the revision of most nodes, then the first by name |
| a model's weights            | nodes that have them go before those that cannot load it, or have not fetched it   |
| the files of an adapter      | only nodes that have them get its requests                                         |

A request goes only to a node that has exactly the weights that its name then means.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from pydantic import ValidationError

from fleet.reports import Digest
from registry.base.json import NOT_JSON
from registry.catalog import Catalog, ResolvedName
from registry.errors import NotFound, RoundhouseError
from registry.files.context import Ability
from registry.recipes.definition import Recipe
from registry.state.database import State
from runtime.gateway.files import UNKNOWN
from runtime.gateway.names import ModelRef, Names
from runtime.gateway.views.values import ModelView
from tenants.caller import Caller

log = logging.getLogger("roundhouse.fleet")
MAX_MODELS, MAX_FILES = 4096, 100_000
LEFT_SECONDS = 600.0
"""Time for which the models of a node that left are remembered, since it may come back with them."""


class NodeModel(msgspec.Struct, frozen=True):
    """A model as its node describes it."""

    recipe: dict[str, Any]
    abilities: tuple[Ability, ...]
    view: ModelView


class NodeNames(msgspec.Struct, frozen=True):
    """A node's names. Sent when they change."""

    models: Annotated[tuple[NodeModel, ...], Meta(max_length=MAX_MODELS)]
    digests: Annotated[tuple[Digest, ...], Meta(max_length=MAX_FILES)]
    """Digests of adapters whose files it has."""


_DECODER = msgspec.json.Decoder(NodeNames)


class PeerModel(msgspec.Struct, frozen=True):
    """A model of the fleet: exactly one set of weights."""

    recipe: Recipe
    revision: str
    abilities: frozenset[Ability]
    view: ModelView

    @property
    def problem(self) -> str | None:
        """The reason why its node cannot load it. None if it can, as far as known."""
        return self.view.problem


class _NodeEntry(msgspec.Struct, frozen=True):
    models: Mapping[str, PeerModel]
    digests: frozenset[str]


class PeerNames:
    """What each node has. `names` resolves names on nodes. For one event loop.

    Args:
        state: the names that the fleet shares. Call `names.refresh` after each change.
    """

    def __init__(self, state: State) -> None:
        self._nodes: dict[str, _NodeEntry] = {}
        self._left: dict[str, tuple[_NodeEntry, float]] = {}
        """Nodes that left, and until when they are remembered."""
        self._left_names: tuple[Catalog, Names] | None = None
        """The catalog, and the names of those nodes with its adapters and aliases."""
        self._state = state
        self.models: Mapping[str, PeerModel] = {}
        self.names = Names((), state)
        self.on_change: Callable[[], None] = lambda: None
        """Called when the models or files of a node have changed."""

    def take(self, node: str, data: bytes) -> None:
        """Replace a node's names. Only logs data that cannot be read."""
        try:
            given = _DECODER.decode(data)
        except NOT_JSON as error:
            log.error("the names of a node cannot be read", extra={"node": node, "cause": str(error)})
            return
        self._left.pop(node, None)
        self._left_names = None
        self._nodes[node] = _NodeEntry(_models(node, given.models), frozenset(given.digests))
        self._merge()

    def remove(self, node: str) -> None:
        if (entry := self._nodes.pop(node, None)) is not None:
            self._left[node] = entry, monotonic() + LEFT_SECONDS
            self._left_names = None
            self._merge()

    def was_on_left_node(self, model_ref: ModelRef, caller: Caller) -> bool:
        """Return whether a node that left within LEFT_SECONDS had this name."""
        if any(until <= monotonic() for _, until in self._left.values()):
            self._left = {node: one for node, one in self._left.items() if one[1] > monotonic()}
            self._left_names = None
        if not self._left:
            return False
        if self._left_names is None or self._left_names[0] is not self.names.catalog:
            recipes = {id_: model.recipe for entry, _ in self._left.values() for id_, model in entry.models.items()}
            self._left_names = self.names.catalog, Names([*recipes.values()], self._state)
        try:
            self._left_names[1].resolve(model_ref, caller)
        except NotFound:
            return False
        except RoundhouseError:
            return True
        return True

    @property
    def by_node(self) -> Mapping[str, Mapping[str, PeerModel]]:
        return {name: node.models for name, node in self._nodes.items()}

    def has_weights(self, node: str, model: str, revision: str, digest: str | None) -> bool:
        """Whether a node has exactly these weights."""
        entry = self._nodes.get(node)
        if entry is None or (digest is not None and digest not in entry.digests):
            return False
        return (reported := entry.models.get(model)) is not None and reported.revision == revision

    def nodes_with(self, model: str, revision: str, digest: str | None) -> list[str]:
        """The nodes that have exactly these weights, by name."""
        return sorted(name for name in self._nodes if self.has_weights(name, model, revision, digest))

    def nodes(self) -> list[str]:
        """All nodes, those with the most models first."""
        return sorted(self._nodes, key=lambda name: (-len(self._nodes[name].models), name))

    def nodes_of(self, base: str) -> list[str]:
        """List the nodes that can load a model in any revision, by name."""
        models = {name: node.models.get(base) for name, node in self._nodes.items()}
        return sorted(name for name, model in models.items() if model is not None and model.problem is None)

    def has_files(self, node: str, digest: str) -> bool:
        """Whether a node has the files of an adapter."""
        return node in self._nodes and digest in self._nodes[node].digests

    def nodes_storing(self, digest: str) -> list[str]:
        """The nodes that have the files of an adapter, by name."""
        return sorted(node for node in self._nodes if self.has_files(node, digest))

    def _merge(self) -> None:
        ordered = [self._nodes[name] for name in sorted(self._nodes)]
        counts = Counter(
            (id_, model.recipe.version, model.revision) for node in ordered for id_, model in node.models.items()
        )
        models: dict[str, PeerModel] = {}
        for node in ordered:
            for id_, model in node.models.items():
                before = models.get(id_)
                if before is None or _rank(counts, id_, model) > _rank(counts, id_, before):
                    models[id_] = model
        if models != self.models:
            self.models = models
            self.names.serve([model.recipe for model in models.values()])
        self.on_change()


def find_remote(own: Names | None, peers: PeerNames, name: str, caller: Caller) -> ResolvedName | None:
    """Resolve a name of another node. None if this server handles it, or if no node knows it.

    own: names of this server, which take precedence. None on a front.

    Raises Forbidden and, on a front, NotFound.
    """
    if own is not None and own.is_here(name, caller):
        return None
    try:
        return peers.names.find(name, caller)
    except NotFound:
        if own is None:
            raise
        return None


def _rank(counts: Counter[tuple[str, int, str]], id_: str, one: PeerModel) -> tuple[int, bool, bool, int]:
    version = one.recipe.version
    return version, one.problem is None, one.revision != UNKNOWN, counts[id_, version, one.revision]


def _models(node: str, given: Iterable[NodeModel]) -> Mapping[str, PeerModel]:
    """Decode the models that this version understands."""
    models = {}
    for one in given:
        try:
            recipe = Recipe.model_validate(one.recipe)
        except ValidationError as error:
            log.error("a node's recipe is left out", extra={"node": node, "cause": str(error)})
            continue
        models[recipe.id] = PeerModel(recipe, one.view.revision, frozenset(one.abilities), one.view)
    return models
