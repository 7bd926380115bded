"""Adapters: register by path, hub id or upload; versions, aliases, rollback, pins; and vLLM's own two calls."""

from typing import Annotated, Any, TypeVar

from fastapi import Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from adapters.types import AdapterSource, UploadedArchive
from registry.errors import BadRequest, Unavailable
from registry.recipes.fault_words import words
from registry.recipes.source import PathSource
from registry.records import Probe
from registry.state.versions import RemoveAlias, Rollback, SetAlias
from runtime.gateway.core import Gateway
from runtime.http.admin.answers import AdapterCheckView, AdapterListView, json_answer, registration_answer
from runtime.http.admin.bodies import AliasBody, RegisterRequest, RollbackBody, VllmLoadBody, VllmUnloadBody
from runtime.http.admin.folders import check_folder, check_scope
from runtime.http.bodies import parse_object, read_body
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.sending import Route
from runtime.http.upload import receive
from tenants.caller import Caller

FORM_FIELDS = ("name", "base", "alias", "shared", "probe_prompt", "probe_expected")
Name = Annotated[
    str,
    Path(
        alias="name",
        description="adapter name; base:name where two bases have one of this name; team/name for another team's",
    ),
]


async def list_(
    gateway: CurrentGateway, context: CurrentContext, base: Annotated[str | None, Query()] = None
) -> Response:
    """Those of the caller's team and those that are shared; a key with the scope `admin` sees all."""
    return json_answer(AdapterListView(gateway.services.adapters.all(context.caller, base)))


async def show(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    return json_answer(gateway.services.adapters.show(name, context.caller))


async def register(
    request: Request, gateway: CurrentGateway, context: CurrentContext, dry_run: Annotated[bool, Query()] = False
) -> Response:
    """JSON `{name, base, source}`, or multipart with `name`, `base` and a tar, tar.gz or zip in `file`.

    The form takes `alias` and `shared` too, and a probe as `probe_prompt` and `probe_expected`.
    """
    caller = context.caller
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return await _upload(request, gateway, caller, dry_run)
    body = _validate(RegisterRequest, parse_object(await read_body(request, gateway.services.settings.max_json)))
    if isinstance(body.source, PathSource):
        await _check_folder(gateway, body.base, body.name, caller, body.source.path, "source.path")
    return await _register(gateway, body, body.source, caller, dry_run)


async def _upload(request: Request, gateway: Gateway, caller: Caller, dry_run: bool) -> Response:
    adapters = gateway.services.adapters
    limit = gateway.services.settings.max_adapter
    fields: dict[str, str] = {}

    def on_field(name: str, value: str) -> None:
        """Judge what comes before the file, so that a wrong form does not cost an upload."""
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
    except ClientDisconnect:
        return Response(status_code=499)  # nobody reads it
    except Unavailable as error:
        if error.code != "no_space":
            raise
        raise Unavailable(
            "The disk that holds the adapters is full, or cannot be written. Nothing was registered.",
            code="disk_full",
            retry_after=30,
        ) from error


async def _check_folder(gateway: Gateway, base: str, name: str, caller: Caller, path: str, param: str) -> None:
    """Names first: a wrong one must not tell what lies on the server's disks."""
    check_scope(caller, param, "adapters")
    gateway.services.adapters.check_name(base, name, caller)
    await check_folder(path, gateway.services.settings, param, "adapters")


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


async def remove(
    gateway: CurrentGateway,
    context: CurrentContext,
    name: Name,
    version: Annotated[str | None, Query()] = None,
    force: Annotated[bool, Query()] = False,
) -> Response:
    """Remove an adapter or one version of it. Refused while requests use it or aliases point to it."""
    return json_answer(await gateway.services.adapters.remove(name, version, context.caller, force=force))


async def set_alias(
    gateway: CurrentGateway, context: CurrentContext, name: Name, alias: str, body: AliasBody
) -> Response:
    return json_answer(await gateway.services.adapters.change(name, SetAlias(alias, body.version), context.caller))


async def remove_alias(gateway: CurrentGateway, context: CurrentContext, name: Name, alias: str) -> Response:
    return json_answer(await gateway.services.adapters.change(name, RemoveAlias(alias), context.caller))


async def rollback(
    gateway: CurrentGateway, context: CurrentContext, name: Name, body: RollbackBody | None = None
) -> Response:
    """Make the version before the current one, or the one that is named, the current one."""
    return json_answer(
        await gateway.services.adapters.change(name, Rollback(body.version if body else None), context.caller)
    )


async def pin(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Keep the current version in its device place."""
    return json_answer(await gateway.services.adapters.pin(name, True, context.caller))


async def unpin(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    return json_answer(await gateway.services.adapters.pin(name, False, context.caller))


async def share(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Let all teams use it."""
    return json_answer(await gateway.services.adapters.share(name, True, context.caller))


async def unshare(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Let only its own team use it: requests of others get 404 from now on."""
    return json_answer(await gateway.services.adapters.share(name, False, context.caller))


# --- vLLM's calls ----------------------------------------------------------------------------------------------------
async def vllm_load(gateway: CurrentGateway, context: CurrentContext, body: VllmLoadBody) -> Response:
    base = body.base_model_name or gateway.services.adapters.only_base()
    await _check_folder(gateway, base, body.lora_name, context.caller, body.lora_path, "lora_path")
    await gateway.services.adapters.register(body.lora_name, base, PathSource(path=body.lora_path), context.caller)
    return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.", media_type="text/plain")


async def vllm_unload(gateway: CurrentGateway, context: CurrentContext, body: VllmUnloadBody) -> Response:
    await gateway.services.adapters.remove(body.lora_name, None, context.caller)
    return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", media_type="text/plain")


ROUTES: list[Route] = [
    ("/v1/adapters", list_, ["GET"]),
    ("/v1/adapters", register, ["POST"]),
    ("/v1/adapters/{name:path}/aliases/{alias}", set_alias, ["PUT"]),
    ("/v1/adapters/{name:path}/aliases/{alias}", remove_alias, ["DELETE"]),
    ("/v1/adapters/{name:path}/rollback", rollback, ["POST"]),
    ("/v1/adapters/{name:path}/pin", pin, ["PUT"]),
    ("/v1/adapters/{name:path}/pin", unpin, ["DELETE"]),
    ("/v1/adapters/{name:path}/shared", share, ["PUT"]),
    ("/v1/adapters/{name:path}/shared", unshare, ["DELETE"]),
    ("/v1/adapters/{name:path}", show, ["GET"]),
    ("/v1/adapters/{name:path}", remove, ["DELETE"]),
    ("/v1/load_lora_adapter", vllm_load, ["POST"]),
    ("/v1/unload_lora_adapter", vllm_unload, ["POST"]),
]


def _form(fields: dict[str, str]) -> dict[str, Any]:
    """A form's fields as the JSON body of a registration."""
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
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or None
        message = f"{where or 'The body'}: {first['msg']}"
        if first["type"] == "string_pattern_mismatch":
            message = words(first, kind)
        raise BadRequest(f"{message}.", param=where) from None
