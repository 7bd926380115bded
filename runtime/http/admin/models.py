"""Models: OpenAI's list and retrieve, aliases, and residency by hand."""

from typing import Annotated, Any

from fastapi import Path, Query
from fastapi.responses import JSONResponse, Response

from registry.errors import NotFound
from registry.wording import quoted
from runtime.gateway.core import Gateway
from runtime.http.admin.views import adapter_card, model_view, plan_view
from runtime.residency.entry import ModelEntry

ModelPath = Annotated[str, Path(description="model id or alias")]


class ModelEndpoints:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def routes(self) -> list[tuple[str, Any, list[str]]]:
        return [
            ("/v1/models", self.list, ["GET"]),
            ("/v1/models/{model:path}/load", self.load, ["POST"]),
            ("/v1/models/{model:path}/unload", self.unload, ["POST"]),
            ("/v1/models/{model:path}/plan", self.plan, ["POST"]),
            ("/v1/models/{model:path}/pin", self.pin, ["PUT"]),
            ("/v1/models/{model:path}/pin", self.unpin, ["DELETE"]),
            ("/v1/models/{model:path}/aliases/{alias:path}", self.set_alias, ["PUT"]),
            ("/v1/models/{model:path}/aliases/{alias:path}", self.remove_alias, ["DELETE"]),
            ("/v1/models/{model:path}", self.show, ["GET"]),
        ]

    def _entry(self, model: str) -> ModelEntry:
        gateway = self.gateway
        target = gateway.catalog.resolve(model)
        if target.version is not None:
            raise NotFound(f"'{model}' is an adapter; see /v1/adapters/{target.adapter_name}.", code="model_not_found")
        return gateway.residency.get(target.recipe.id)

    async def list(self) -> dict[str, Any]:
        """All models, then all adapters, in OpenAI's list shape."""
        gateway = self.gateway
        data = [model_view(gateway, e) for e in gateway.residency.entries.values()]
        for entry in gateway.residency.entries.values():
            data += [adapter_card(gateway, a, entry) for a in gateway.catalog.adapters(entry.id)]
        return {"object": "list", "data": data}

    async def show(self, model: ModelPath) -> dict[str, Any]:
        """One model or adapter, with the progress of a load that is under way."""
        gateway = self.gateway
        target = gateway.catalog.resolve(model)
        entry = gateway.residency.get(target.recipe.id)
        if target.version is not None and target.adapter_name is not None:
            return adapter_card(gateway, gateway.service.show(entry.id, target.adapter_name), entry)
        return model_view(gateway, entry)

    async def load(self, model: ModelPath, wait: Annotated[bool, Query()] = True) -> Response:
        """Bring the model in. With wait=false: 202 at once; ask /v1/models/{id} for the progress."""
        entry = self._entry(model)
        if not wait:
            self.gateway.residency.want(entry)
            return JSONResponse(model_view(self.gateway, entry), 202, headers={"Location": f"/v1/models/{entry.id}"})
        await self.gateway.residency.load(entry)
        return JSONResponse(model_view(self.gateway, entry))

    async def unload(self, model: ModelPath, force: Annotated[bool, Query()] = False) -> dict[str, Any]:
        """Let the model leave: running requests finish first. A pinned one only with force=true."""
        entry = self._entry(model)
        await self.gateway.residency.unload(entry, force)
        return model_view(self.gateway, entry)

    async def plan(self, model: ModelPath) -> dict[str, Any]:
        """What a load would do now. Changes nothing."""
        return plan_view(self.gateway.residency.plan(self._entry(model)))

    async def pin(self, model: ModelPath) -> dict[str, Any]:
        """Never evict this model. Does not load it."""
        entry = self._entry(model)
        self.gateway.state.models.set_pin(entry.id, True)
        self.gateway.residency.pin(entry)
        return model_view(self.gateway, entry)

    async def unpin(self, model: ModelPath) -> dict[str, Any]:
        entry = self._entry(model)
        self.gateway.state.models.set_pin(entry.id, False)
        self.gateway.residency.unpin(entry)
        return model_view(self.gateway, entry)

    async def set_alias(self, model: ModelPath, alias: str) -> dict[str, Any]:
        """A further name of the model, or one that moves to it from another model."""
        gateway = self.gateway
        recipe = gateway.catalog.check_alias(alias, model)
        gateway.state.models.set_alias(alias, recipe.id)
        gateway.refresh()
        return model_view(gateway, gateway.residency.get(recipe.id))

    async def remove_alias(self, model: ModelPath, alias: str) -> dict[str, Any]:
        """Remove an alias that was made by a call; those of recipes stay."""
        gateway = self.gateway
        entry = self._entry(model)
        if gateway.catalog.aliases.get(alias) != entry.id:
            raise NotFound(f"Model '{entry.id}' has no alias {quoted(alias)}.", code="alias_not_found", param="alias")
        gateway.state.models.remove_alias(alias)
        gateway.refresh()
        return model_view(gateway, entry)
