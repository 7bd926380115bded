"""Models that come, change and go while the server runs."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import Query
from fastapi.responses import Response, StreamingResponse

from launch.request import ModelRequest, Step, WorkingSet
from launch.source import parse_source
from models import sse
from registry.errors import EngineFailed, RoundhouseError
from registry.recipes.source import PathSource
from runtime.gateway.core import Gateway
from runtime.gateway.launch.views import ModelAddedView, proposal_view, step_view
from runtime.gateway.views.values import ModelView
from runtime.http import errors as http_errors
from runtime.http.admin.answers import json_answer
from runtime.http.admin.bodies import AddModelBody, EditModelBody
from runtime.http.admin.folders import check_folder, check_scope
from runtime.http.admin.models import Name
from runtime.http.dialect import EVENT_STREAM, NO_BUFFERING
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.sending import Route
from tenants.caller import Caller


async def add(gateway: CurrentGateway, context: CurrentContext, body: AddModelBody) -> Response:
    """Propose a recipe for a model, and serve it. With dry_run only the proposal; with stream its way here as events.

    Without stream the answer comes as soon as it is served; files of a hub come meanwhile, see /v1/models/{id}.
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
    source = parse_source(body.source, body.revision)
    if isinstance(source, PathSource):
        check_scope(caller, "source", "models")
        await check_folder(source.path, gateway.services.settings, "source", "models")
    overrides = body.overrides or {}
    return ModelRequest(body.source, body.id, body.revision, overrides, WorkingSet(body.requests, body.tokens))


async def _events(gateway: Gateway, request: ModelRequest) -> AsyncIterator[bytes]:
    try:
        async with aclosing(gateway.services.additions.add(request)) as steps:
            async for step in steps:
                yield sse.event(step_view(step))
    except RoundhouseError as error:
        yield http_errors.sse(error)
    yield sse.DONE_EVENT


async def edit(gateway: CurrentGateway, name: Name, body: EditModelBody) -> Response:
    """A new version of a model's recipe. It counts once nobody uses the model; the version before stays as `id@n`."""
    try:
        return json_answer(await gateway.services.editor.edit(name, body.changes))
    except RoundhouseError as error:
        if error.param == "overrides":  # the same fault's field where a model is added
            error.param = "changes"
        raise


async def remove(
    gateway: CurrentGateway,
    name: Name,
    force: Annotated[bool, Query()] = False,
    purge: Annotated[bool, Query()] = False,
) -> Response:
    """Take a model out that was added here, or one former version; `purge` takes its files along."""
    return json_answer(await gateway.services.editor.remove(name, force=force, purge=purge))


async def recipe(gateway: CurrentGateway, name: Name) -> Response:
    """The recipe as YAML, as a file of --recipes may hold it."""
    return Response(await gateway.services.editor.export(name), media_type="application/yaml")


async def cancel(gateway: CurrentGateway, name: Name) -> Response:
    """Stop bringing a model's files. What has come is kept for the next try."""
    view = gateway.services.models.show(name)
    gateway.services.additions.cancel(view.id)
    return json_answer(gateway.services.models.show(name))


async def reload(gateway: CurrentGateway) -> Response:
    """Read the recipe files again, as SIGHUP does. A faulty file changes nothing."""
    return json_answer(await gateway.services.reloader.reload())


ROUTES: list[Route] = [
    ("/v1/models", add, ["POST"]),
    ("/v1/recipes/reload", reload, ["POST"]),
    ("/v1/models/{model:path}/recipe", recipe, ["GET"]),
    ("/v1/models/{model:path}/download", cancel, ["DELETE"]),
]
WHOLE: list[Route] = [
    ("/v1/models/{model:path}", edit, ["PATCH"]),
    ("/v1/models/{model:path}", remove, ["DELETE"]),
]
"""Whose paths end with the model: behind those that say more."""
