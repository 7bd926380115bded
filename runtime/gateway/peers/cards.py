"""Models and adapters of other nodes, for lists of models."""

from msgspec.structs import replace

from registry.catalog import Catalog
from registry.records import Adapter, Version
from runtime.gateway.models import redacted
from runtime.gateway.names import Names
from runtime.gateway.peers.names import PeerModel, PeerNames, find_remote
from runtime.gateway.views.values import AdapterCardView, ModelView, card_on
from tenants.caller import Caller


class PeerCards:
    """own: names of this server, which take precedence. None on a front."""

    def __init__(self, own: Names | None, peers: PeerNames) -> None:
        self._own, self._peers = own, peers

    def all(self, caller: Caller) -> list[ModelView | AdapterCardView]:
        """List models of other nodes that the caller may use, then adapters."""
        catalog = self._peers.names.visible_to(caller)
        own = frozenset[str]() if self._own is None else frozenset(self._own.catalog.recipes)
        models = [model for id_, model in self._peers.models.items() if id_ in catalog.recipes and id_ not in own]
        cards = [
            _adapter_card(adapter, catalog.spelled(adapter.key), model)
            for model in models
            for adapter in catalog.adapters(model.recipe.id)
        ]
        return [*(_model_card(model, catalog, caller) for model in models), *cards]

    def find(self, name: str, caller: Caller) -> ModelView | AdapterCardView | None:
        """The card from another node, or None if no other node has it. Raises Forbidden and, on a front, NotFound."""
        resolved = find_remote(self._own, self._peers, name, caller)
        if resolved is None:
            return None
        model, catalog = self._peers.models[resolved.recipe.id], self._peers.names.visible_to(caller)
        if resolved.version is None:
            return _model_card(model, catalog, caller)
        adapter = next(adapter for adapter in catalog.adapters(model.recipe.id) if adapter.key == resolved.version.key)
        return _adapter_card(adapter, catalog.spelled(adapter.key), model, resolved.version)


def _model_card(model: PeerModel, catalog: Catalog, caller: Caller) -> ModelView:
    adapters = [catalog.spelled(adapter.key) for adapter in catalog.adapters(model.recipe.id)]
    return redacted(replace(model.view, adapters=adapters), caller)


def _adapter_card(adapter: Adapter, name: str, model: PeerModel, version: Version | None = None) -> AdapterCardView:
    view = model.view
    fields = {
        "max_model_len": view.max_model_len,
        "model_type": view.model_type,
        "model_ability": view.model_ability,
    }
    return card_on(adapter, name, model.recipe, fields, version)
