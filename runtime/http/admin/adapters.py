"""Adapters: register by path, hub id or upload; versions, aliases, rollback and pins; vLLM's two calls."""

from typing import Annotated, Any, TypeVar

from fastapi import Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapters.compose.jobs import MOST_PARTS, Method
from adapters.types import AdapterSource, UploadedArchive
from registry.errors import BadRequest, Unavailable
from registry.names import AdapterName
from registry.recipes.fields import PathSource
from registry.recipes.validation import words
from registry.records import Probe
from runtime.gateway.adapters import AdapterDeletedView
from runtime.gateway.combine import AdapterMergedView, Combination
from runtime.gateway.core import Gateway
from runtime.gateway.launch.merged import MERGED, MergedModelDeletedView, MergedModelListView
from runtime.gateway.views.values import AdapterView
from runtime.http.admin.bodies import (
    AdapterCheckView,
    AdapterListView,
    AliasBody,
    RegisterRequest,
    RollbackBody,
    VllmLoadBody,
    VllmUnloadBody,
    json_answer,
    locate_adapter,
    registration_answer,
)
from runtime.http.admin.folders import check_folder, check_scope
from runtime.http.bodies import WHOLE, model_error, parse_object, read_body
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import BOOLEAN, CONFLICT, MANAGEMENT, STRING, TEXT, component, models, record
from runtime.http.upload import receive
from tenants.caller import Caller, Scope

route = RouteGroup("Adapters")

_JSON_FIELDS = models(RegisterRequest)
_FIELDS, _PROBE = _JSON_FIELDS["RegisterRequest"]["properties"], _JSON_FIELDS["ProbeBody"]["properties"]
FORM = component(
    "RegisterForm",
    record(
        {
            "name": _FIELDS["name"],
            "base": _FIELDS["base"],
            "alias": {**STRING, "description": "Points at the new version."},
            "shared": {**BOOLEAN, "description": "All teams may use it; left out: as before, or your team alone."},
            "probe_prompt": _PROBE["prompt"],
            "probe_expected": _PROBE["expected"],
            "file": {
                "type": "string",
                "contentMediaType": "application/octet-stream",
                "description": "A tar, tar.gz or zip with the adapter's files, at most 2 GiB by default.",
            },
        },
        ["name", "base", "file"],
        open_=False,
    ),
)
FORM_FIELDS = ("name", "base", "alias", "shared", "probe_prompt", "probe_expected")
Name = Annotated[
    str,
    Path(
        alias="name",
        description="adapter name; base:name where two bases have one of this name; team/name for another team's",
    ),
]
MergedName = Annotated[str, Path(alias="name", description="name of a merged model, as listed")]


@route("GET", "/v1/adapters", scope=Scope.ADAPTERS, answer=AdapterListView)
async def list_adapters(
    gateway: CurrentGateway, context: CurrentContext, base: Annotated[str | None, Query()] = None
) -> Response:
    """List adapters.

    Lists the team's own and shared adapters, or all with the scope `admin`.
    """
    adapters = gateway.services.adapters.all(context.caller, base)
    return json_answer(AdapterListView(await gateway.services.lists.build(context.caller.team, adapters)))


@route("GET", "/v1/adapters/{name:path}", scope=Scope.ADAPTERS, answer=AdapterView)
async def get_adapter(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Show an adapter."""
    return json_answer(gateway.services.adapters.show(name, context.caller))


@route(
    "POST",
    "/v1/adapters",
    scope=Scope.ADAPTERS,
    answer=(AdapterView, AdapterCheckView),
    body={"application/json": RegisterRequest, "multipart/form-data": FORM},
    errors=(*MANAGEMENT, 408, 409, 413, 422, 500, 503),
    others={201: ("A new version.", AdapterView)},
    examples={
        "folder": {"name": "support", "base": "starter-chat", "source": {"path": "/srv/adapters/support"}},
        "hub": {"name": "support", "base": "starter-chat", "source": {"hub": "team/support", "revision": "main"}},
    },
)
async def register_adapter(
    request: Request, gateway: CurrentGateway, context: CurrentContext, dry_run: Annotated[bool, Query()] = False
) -> Response:
    """Register an adapter.

    An existing name gets a new version. Registering the same content again changes nothing (200). With `dry_run=true`
    it is only checked. The form also takes `alias`, `shared`, and a probe in `probe_prompt` and `probe_expected`.
    """
    caller = context.caller
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return await _upload(request, gateway, caller, dry_run)
    body = _validate(RegisterRequest, parse_object(await read_body(request, gateway.services.settings.max_json)))
    source, param = body.located, "source" if isinstance(body.source, str) else "source.path"
    if isinstance(source, PathSource):
        await _check_folder(gateway, body.base, body.name, caller, source.path, param)
    return await _register(gateway, body, source, caller, dry_run)


async def _upload(request: Request, gateway: Gateway, caller: Caller, dry_run: bool) -> Response:
    adapters = gateway.services.adapters
    limit = gateway.services.settings.max_adapter
    fields: dict[str, str] = {}

    def on_field(name: str, value: str) -> None:
        """Check fields that arrive before the file, so that an invalid form is refused without the upload."""
        if name not in FORM_FIELDS or name in fields:
            raise BadRequest(f"The form's fields are {', '.join(FORM_FIELDS)}, once each, and 'file'.", param=name)
        fields[name] = value
        if "base" in fields:
            adapters.check_name(fields["base"], fields.get("name"), caller)

    try:
        storage = (gateway.services.uploads, adapters.incoming)
        async with receive(request, *storage, limit, on_field, "archive", ".archive") as upload:
            body = _validate(RegisterRequest, _form(fields))
            return await _register(gateway, body, UploadedArchive(upload.path), caller, dry_run)
    except Unavailable as error:
        if error.code != "no_space":
            raise
        raise Unavailable(
            "The disk that holds the adapters is full, or cannot be written. Nothing was registered.",
            code="disk_full",
            retry_after=30,
        ) from error


async def _check_folder(gateway: Gateway, base: str, name: str, caller: Caller, path: str, param: str) -> None:
    """Check the names first, so that a wrong name reveals nothing about the server's disks."""
    check_scope(caller, param, "adapters")
    gateway.services.adapters.check_name(base, name, caller)
    await check_folder(path, gateway.services.settings, param, "adapters", caller)


async def _register(
    gateway: Gateway, body: RegisterRequest, source: AdapterSource, caller: Caller, dry_run: bool
) -> Response:
    name = body.name
    if dry_run:
        base, checked = await gateway.services.adapters.check(name, body.base, source, caller)
        return json_answer(
            AdapterCheckView(
                name=name,
                base=base,
                digest=checked.digest,
                rank=checked.rank,
                bytes=checked.bytes,
                notes=list(checked.notes),
            )
        )
    probe = Probe(body.probe.prompt, body.probe.expected) if body.probe else None
    done = await gateway.services.adapters.register(
        name, body.base, source, caller, probe=probe, alias=body.alias, shared=body.shared
    )
    return registration_answer(done)


@route("DELETE", "/v1/adapters/{name:path}", scope=Scope.ADAPTERS, answer=AdapterDeletedView, errors=CONFLICT)
async def delete_adapter(
    gateway: CurrentGateway,
    context: CurrentContext,
    name: Name,
    version: Annotated[str | None, Query()] = None,
    force: Annotated[bool, Query()] = False,
) -> Response:
    """Remove an adapter or one version of it.

    Refused while requests use it or aliases point to it.
    """
    return json_answer(await gateway.services.adapters.remove(name, version, context.caller, force=force))


@route("PUT", "/v1/adapters/{name:path}/aliases/{alias}", scope=Scope.ADAPTERS, answer=AdapterView, errors=CONFLICT)
async def set_alias(
    gateway: CurrentGateway, context: CurrentContext, name: Name, alias: str, body: AliasBody
) -> Response:
    """Point an alias at a version."""
    view = await gateway.services.adapters.change(
        name, lambda table, key: table.set_alias(key, alias, body.version), context.caller
    )
    return json_answer(view)


@route("DELETE", "/v1/adapters/{name:path}/aliases/{alias}", scope=Scope.ADAPTERS, answer=AdapterView, errors=CONFLICT)
async def delete_alias(gateway: CurrentGateway, context: CurrentContext, name: Name, alias: str) -> Response:
    """Remove an alias."""
    view = await gateway.services.adapters.change(
        name, lambda table, key: table.remove_alias(key, alias), context.caller
    )
    return json_answer(view)


@route("POST", "/v1/adapters/{name:path}/rollback", scope=Scope.ADAPTERS, answer=AdapterView, errors=CONFLICT)
async def rollback_adapter(
    gateway: CurrentGateway, context: CurrentContext, name: Name, body: RollbackBody | None = None
) -> Response:
    """Go back to an earlier version.

    The named version, or the one before the current one, becomes current.
    """
    version = body.version if body else None
    view = await gateway.services.adapters.change(name, lambda table, key: table.rollback(key, version), context.caller)
    return json_answer(view)


@route("PUT", "/v1/adapters/{name:path}/pin", scope=Scope.ADAPTERS, answer=AdapterView, errors=(*CONFLICT, 500))
async def pin_adapter(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Pin an adapter in its place.

    The current version stays in its place on the device.
    """
    return json_answer(await gateway.services.adapters.pin(name, True, context.caller))


@route("DELETE", "/v1/adapters/{name:path}/pin", scope=Scope.ADAPTERS, answer=AdapterView, errors=(*CONFLICT, 500))
async def unpin_adapter(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Unpin an adapter."""
    return json_answer(await gateway.services.adapters.pin(name, False, context.caller))


@route("PUT", "/v1/adapters/{name:path}/shared", scope=Scope.ADAPTERS, answer=AdapterView, errors=CONFLICT)
async def share_adapter(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Let all teams use an adapter."""
    return json_answer(await gateway.services.adapters.share(name, True, context.caller))


@route("DELETE", "/v1/adapters/{name:path}/shared", scope=Scope.ADAPTERS, answer=AdapterView, errors=CONFLICT)
async def unshare_adapter(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Restrict an adapter to its own team.

    Requests of other teams then get a 404.
    """
    return json_answer(await gateway.services.adapters.share(name, False, context.caller))


# --- combine and merge -----------------------------------------------------------------------------------------------
class PartBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(description="as in requests: name, name@version, base:name, team/name")
    weight: float = Field(ge=-10, le=10, allow_inf_nan=False, description="what its change of the base counts")


class CombineBody(BaseModel):
    """Combine adapters of one base into a new version of `name`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: AdapterName
    adapters: Annotated[list[PartBody], Field(min_length=2, max_length=MOST_PARTS)]
    method: Method = "linear"
    density: float = Field(default=0.5, gt=0, le=1, description="the share of values that ties and dare keep")
    halves: bool = Field(default=False, description="combine the halves A and B apart: faster, and rough")
    seed: Annotated[int, Field(ge=0, lt=2**32, description="of what dare drops"), WHOLE] = 0
    alias: str | None = Field(default=None, description="an alias that is pointed at the new version")


@route(
    "POST",
    "/v1/adapters/combine",
    scope=Scope.ADAPTERS,
    answer=AdapterView,
    errors=(*CONFLICT, 422, 500, 503),
    others={201: ("A new version.", AdapterView)},
)
async def combine_adapters(gateway: CurrentGateway, context: CurrentContext, body: CombineBody) -> Response:
    """Combine adapters into a new one.

    A separate process builds it with peft from adapters of one base. Then it is checked and registered like any other.
    The same content again changes nothing (200).
    """
    parts = tuple((part.name, part.weight) for part in body.adapters)
    combination = Combination(body.name, parts, body.method, body.density, body.halves, body.seed, body.alias)
    return registration_answer(await gateway.services.combiner.combine(combination, context.caller))


@route(
    "POST",
    "/v1/adapters/{name:path}/merge",
    scope=Scope.ADAPTERS,
    answer=AdapterMergedView,
    errors=(*CONFLICT, 422, 500, 503),
)
async def merge_adapter(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Write base and adapter as one model.

    The model is written to the server's data directory; to serve it, add `output` with POST /v1/models. It needs as
    much memory and disk space as the base. If the version was merged before, that result is returned.
    """
    folder = gateway.services.settings.data_dir / MERGED
    return json_answer(await gateway.services.combiner.merge(name, context.caller, folder))


@route("GET", "/v1/merged", scope=Scope.ADAPTERS, answer=MergedModelListView)
async def list_merged(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """List merged models.

    Those of the caller's team, or of all teams for an administrator.
    """
    return json_answer(MergedModelListView(await gateway.services.merged.all(context.caller)))


@route("DELETE", "/v1/merged/{name}", scope=Scope.ADAPTERS, answer=MergedModelDeletedView, errors=CONFLICT)
async def delete_merged(gateway: CurrentGateway, context: CurrentContext, name: MergedName) -> Response:
    """Delete a merged model.

    Refused while a model is served from it.
    """
    return json_answer(await gateway.services.merged.delete(name, context.caller))


# --- vLLM's calls ----------------------------------------------------------------------------------------------------
@route("POST", "/v1/load_lora_adapter", scope=Scope.ADAPTERS, answer=TEXT, errors=(*CONFLICT, 413, 422, 500, 503))
async def vllm_load_adapter(gateway: CurrentGateway, context: CurrentContext, body: VllmLoadBody) -> Response:
    """Register an adapter (vLLM)."""
    base = body.base_model_name or gateway.services.adapters.only_base()
    source = locate_adapter(body.lora_path, "lora_path")
    if isinstance(source, PathSource):
        await _check_folder(gateway, base, body.lora_name, context.caller, source.path, "lora_path")
    await gateway.services.adapters.register(body.lora_name, base, source, context.caller)
    return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.", media_type="text/plain")


@route("POST", "/v1/unload_lora_adapter", scope=Scope.ADAPTERS, answer=TEXT, errors=CONFLICT)
async def vllm_unload_adapter(gateway: CurrentGateway, context: CurrentContext, body: VllmUnloadBody) -> Response:
    """Remove an adapter (vLLM)."""
    await gateway.services.adapters.remove(body.lora_name, None, context.caller)
    return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", media_type="text/plain")


def _form(fields: dict[str, str]) -> dict[str, Any]:
    """Convert a form's fields to the JSON body of a registration."""
    missing = [name for name in ("name", "base") if name not in fields]
    if missing:
        raise BadRequest("Send the fields 'name' and 'base', and the archive as 'file'.", param=missing[0])
    body: dict[str, Any] = {name: fields[name] for name in ("name", "base", "alias", "shared") if name in fields}
    probe = {name: fields[f"probe_{name}"] for name in ("prompt", "expected") if f"probe_{name}" in fields}
    return {**body, "source": {"path": "/"}, **({"probe": probe} if probe else {})}


T = TypeVar("T", bound=BaseModel)


def _validate(kind: type[T], data: dict[str, Any]) -> T:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        refusal = model_error(error)
        if (first := error.errors()[0])["type"] == "string_pattern_mismatch":
            refusal = BadRequest(f"{words(first, kind)}.", param=refusal.param)
        raise refusal from None
