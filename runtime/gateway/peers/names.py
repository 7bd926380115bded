"""What nodes have, by name: their recipes, adapters and aliases, as one catalog.

| two nodes differ in          | what counts                                                                        |
|------------------------------|------------------------------------------------------------------------------------|
| a model's recipe or revision | the newest recipe version, then the revision of most nodes, then the first by name |
| an adapter's versions        | the adapter whose current version is the newest                                    |
| an alias                     | the first node by name                                                             |

A request goes only to a node that has exactly the weights that its name then means.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from pydantic import ValidationError

from registry.base.json import NOT_JSON
from registry.files.context import Ability
from registry.recipes.definition import Recipe
from registry.records import Adapter, AdapterKey, RouterRecord
from runtime.gateway.names import Names
from runtime.gateway.views.values import ModelView

log = logging.getLogger("roundhouse.fleet")
MAX_MODELS, MAX_ADAPTERS = 256, 10_000


class NodeModel(msgspec.Struct, frozen=True):
    """A model as its node describes it."""

    recipe: dict[str, Any]
    abilities: tuple[Ability, ...]
    view: ModelView


class NodeNames(msgspec.Struct, frozen=True):
    """All that a node has by name. Sent when it changes."""

    models: Annotated[tuple[NodeModel, ...], Meta(max_length=MAX_MODELS)]
    aliases: dict[str, str]
    """Given at run time: alias to model id."""
    adapters: Annotated[tuple[Adapter, ...], Meta(max_length=MAX_ADAPTERS)]


_DECODER = msgspec.json.Decoder(NodeNames)


class PeerModel(msgspec.Struct, frozen=True):
    """A model of the fleet: exactly one set of weights."""

    recipe: Recipe
    revision: str
    abilities: frozenset[Ability]
    view: ModelView


class _NodeEntry(msgspec.Struct, frozen=True):
    models: Mapping[str, PeerModel]
    aliases: Mapping[str, str]
    adapters: Mapping[AdapterKey, Adapter]
    digests: frozenset[tuple[str, str]]
    """Base and digest of each adapter's version."""


class PeerNames:
    """`names` resolves; the rest tells which node has what. For one event loop."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeEntry] = {}
        self.models: Mapping[str, PeerModel] = {}
        self._state = _PeerState()
        self.names = Names((), self._state)

    def take(self, node: str, data: bytes) -> bool:
        """A node's names, in the place of those before. False: they cannot be read."""
        try:
            given = _DECODER.decode(data)
        except NOT_JSON as error:
            log.error("the names of a node cannot be read", extra={"node": node, "cause": str(error)})
            return False
        adapters = {adapter.key: adapter for adapter in given.adapters}
        digests = frozenset((key.base, version.digest) for key, one in adapters.items() for version in one.versions)
        self._nodes[node] = _NodeEntry(_models(node, given.models), given.aliases, adapters, digests)
        self._merge()
        return True

    def remove(self, node: str) -> None:
        """A node that is gone."""
        if self._nodes.pop(node, None) is not None:
            self._merge()

    @property
    def by_node(self) -> Mapping[str, Mapping[str, PeerModel]]:
        """The models of each node."""
        return {name: node.models for name, node in self._nodes.items()}

    def nodes_with(self, model: str, revision: str, digest: str | None) -> list[str]:
        """The nodes that have exactly these weights, by name."""
        return sorted(
            name
            for name, node in self._nodes.items()
            if (found := node.models.get(model)) is not None
            and found.revision == revision
            and (digest is None or (model, digest) in node.digests)
        )

    def _merge(self) -> None:
        ordered = [self._nodes[name] for name in sorted(self._nodes)]
        counts = Counter(
            (id_, one.recipe.version, one.revision) for node in ordered for id_, one in node.models.items()
        )
        models: dict[str, PeerModel] = {}
        for node in ordered:
            for id_, one in node.models.items():
                before = models.get(id_)
                if before is None or _rank(counts, id_, one) > _rank(counts, id_, before):
                    models[id_] = one
        adapters: dict[AdapterKey, Adapter] = {}
        for node in ordered:
            for key, adapter in node.adapters.items():
                if key not in adapters or adapter.current.created > adapters[key].current.created:
                    adapters[key] = adapter
        aliases: dict[str, str] = {}
        for node in reversed(ordered):
            aliases.update(node.aliases)
        self.models = models
        self._state.set(adapters.values(), aliases)
        self.names.serve([one.recipe for one in models.values()])


def _rank(counts: Counter[tuple[str, int, str]], id_: str, one: PeerModel) -> tuple[int, int]:
    return one.recipe.version, counts[id_, one.recipe.version, one.revision]


def _models(node: str, given: Iterable[NodeModel]) -> Mapping[str, PeerModel]:
    """Those that this version can read."""
    models = {}
    for one in given:
        try:
            recipe = Recipe.model_validate(one.recipe)
        except ValidationError as error:
            log.error("a node's recipe is left out", extra={"node": node, "cause": str(error)})
            continue
        models[recipe.id] = PeerModel(recipe, one.view.revision, frozenset(one.abilities), one.view)
    return models


class _PeerAdapters:
    def __init__(self) -> None:
        self.adapters: tuple[Adapter, ...] = ()

    def all(self) -> Sequence[Adapter]:
        return self.adapters

    def ever(self) -> Sequence[AdapterKey]:
        return [adapter.key for adapter in self.adapters]


class _PeerAliases:
    def __init__(self) -> None:
        self.given: Mapping[str, str] = {}

    def aliases(self) -> Mapping[str, str]:
        return self.given


class _PeerRouters:
    """Routers are those of the server that the client reached."""

    def all(self) -> Sequence[RouterRecord]:
        return ()


class _PeerState:
    """`runtime.gateway.names.NameState` of the nodes together."""

    def __init__(self) -> None:
        self.adapters, self.models, self.routers = _PeerAdapters(), _PeerAliases(), _PeerRouters()

    def set(self, adapters: Iterable[Adapter], aliases: Mapping[str, str]) -> None:
        self.adapters.adapters, self.models.given = tuple(adapters), aliases
