"""Add, change and remove models while the server runs."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import Query
from fastapi.responses import Response, StreamingResponse

from launch.request import ModelRequest, Step, WorkingSet, parse_source
from models import sse
from registry.errors import EngineFailed, RoundhouseError
from registry.recipes.fields import PathSource
from runtime.gateway.core import Gateway
from runtime.gateway.launch.views import (
    ModelAddedView,
    ModelEditedView,
    ModelRemovedView,
    ModelStepView,
    ProposalView,
    ReloadedView,
    proposal_view,
    step_view,
)
from runtime.gateway.views.values import ModelView
from runtime.http import errors as http_errors
from runtime.http.admin.bodies import AddModelBody, EditModelBody, json_answer, source_text
from runtime.http.admin.folders import check_folder, check_scope
from runtime.http.admin.models import Name
from runtime.http.dialect import EVENT_STREAM, NO_BUFFERING
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import CONFLICT
from tenants.caller import Caller, Scope

route = RouteGroup("Models")


@route(
    "POST",
    "/v1/models",
    scope=Scope.MODELS,
    answer={"application/json": (ProposalView, ModelAddedView), "text/event-stream": ModelStepView},
    body=AddModelBody,
    errors=(*CONFLICT, 422, 500, 503),
    others={201: ("It was added.", ModelAddedView)},
    examples={
        "folder": {"source": "/srv/models/support-merged"},
        "hub": {"source": "Qwen/Qwen3-0.6B", "id": "qwen", "overrides": {"context_length": 8192}},
        "proposal": {"source": "package:models.starter/pack/starter-chat", "id": "mine", "dry_run": True},
    },
)
async def add_model(gateway: CurrentGateway, context: CurrentContext, body: AddModelBody) -> Response:
    """Add a model.

    A recipe is proposed with the reason for each value, stored, and served at once. A model that exists already stays
    unchanged (200). With `dry_run` the answer is only the proposal. Files from a hub are downloaded while the model is
    already listed: see `progress` in GET /v1/models/{id}, or use `stream`.
    """
    request = await _model_request(gateway, context.caller, body)
    if body.dry_run:
        return json_answer(proposal_view(await gateway.services.additions.preview(request)))
    if body.stream:
        return StreamingResponse(_events(gateway, request), headers=NO_BUFFERING, media_type=EVENT_STREAM)
    async with aclosing(gateway.services.additions.add(request)) as steps:
        async for step in steps:
            if isinstance(step, Step) and step.phase == "added":
                model, new = step.model, step.detail == "new"
                view = gateway.services.models.show(model)
                assert isinstance(view, ModelView)
                answer = ModelAddedView(id=model, new=new, model=view)
                return json_answer(answer, 201 if new else 200, {"Location": f"/v1/models/{model}"})
    raise EngineFailed("The addition ended without a result.")


async def _model_request(gateway: Gateway, caller: Caller, body: AddModelBody) -> ModelRequest:
    text = source_text(body.source)
    source = parse_source(text, body.revision)
    if isinstance(source, PathSource):
        check_scope(caller, "source", "models")
        await check_folder(source.path, gateway.services.settings, "source", "models", caller)
    overrides = body.overrides or {}
    return ModelRequest(text, body.id, body.revision, overrides, WorkingSet(body.requests, body.tokens), caller.team)


async def _events(gateway: Gateway, request: ModelRequest) -> AsyncIterator[bytes]:
    try:
        async with aclosing(gateway.services.additions.add(request)) as steps:
            async for step in steps:
                yield sse.event(step_view(step))
    except RoundhouseError as error:
        yield http_errors.sse(error)
    yield sse.DONE_EVENT


@route(
    "PATCH",
    "/v1/models/{model:path}",
    scope=Scope.MODELS,
    answer=ModelEditedView,
    body=EditModelBody,
    errors=(*CONFLICT, 422, 500, 503),
    examples={"cache": {"changes": {"memory.kv_cache": "512MiB"}}},
)
async def edit_model(gateway: CurrentGateway, name: Name, body: EditModelBody) -> Response:
    """Change a model's recipe.

    Makes a new version, which takes effect once no request uses the model. The old version stays as `id@n`.
    """
    try:
        return json_answer(await gateway.services.editor.edit(name, body.changes))
    except RoundhouseError as error:
        if error.param == "overrides":  # the field's name when a model is added
            error.param = "changes"
        raise


@route("DELETE", "/v1/models/{model:path}", scope=Scope.MODELS, answer=ModelRemovedView, errors=(*CONFLICT, 500, 503))
async def remove_model(
    gateway: CurrentGateway,
    name: Name,
    force: Annotated[bool, Query()] = False,
    purge: Annotated[bool, Query()] = False,
) -> Response:
    """Remove a model that was added, or one former version.

    `purge` deletes its files too.
    """
    return json_answer(await gateway.services.editor.remove(name, force=force, purge=purge))


@route("GET", "/v1/models/{model:path}/recipe", scope=Scope.MODELS, answer={"application/yaml": {"type": "object"}})
async def export_model(gateway: CurrentGateway, name: Name) -> Response:
    """Show a model's recipe as YAML, in the format of recipe files."""
    return Response(await gateway.services.editor.export(name), media_type="application/yaml")


@route("DELETE", "/v1/models/{model:path}/download", scope=Scope.MODELS, answer=ModelView)
async def cancel_download(gateway: CurrentGateway, name: Name) -> Response:
    """Stop the download of a model's files.

    Finished parts are kept for the next attempt.
    """
    view = gateway.services.models.show(name)
    gateway.services.additions.cancel(view.id)
    return json_answer(gateway.services.models.show(name))


@route("POST", "/v1/recipes/reload", scope=Scope.MODELS, answer=ReloadedView, errors=(500, 503))
async def reload(gateway: CurrentGateway) -> Response:
    """Read the recipe files again, as SIGHUP does.

    If a file has faults, nothing changes.
    """
    return json_answer(await gateway.services.reloader.reload())
