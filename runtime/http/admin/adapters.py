"""Adapters: register by path, hub id or upload; versions, aliases, rollback, pins; and vLLM's own two calls."""

import asyncio
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.requests import ClientDisconnect

from adapters.sources import AdapterSource, UploadedArchive
from registry.errors import BadRequest, Unavailable
from registry.names import AdapterName
from registry.recipes.definition import HubSource, PathSource
from registry.records import Adapter, AdapterKey, Probe
from runtime.gateway.core import Gateway
from runtime.http.admin.folders import check_folder
from runtime.http.admin.views import adapter_view
from runtime.http.upload import receive
from runtime.http.working import parse_object, read_body
from runtime.residency.entry import ModelEntry
from runtime.scheduling.probes import MOST_BYTES

FORM_FIELDS = ("name", "base", "alias", "probe_prompt", "probe_expected")
NamePath = Annotated[str, Path(description="adapter name, or base:name where two bases have one of this name")]


class ProbeBody(BaseModel):
    """Asked after each commit to an engine: the greedy answer must begin with `expected`."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(min_length=1, max_length=4096)
    expected: str = Field(min_length=1, max_length=MOST_BYTES)

    @field_validator("expected")
    @classmethod
    def _short(cls, value: str) -> str:
        if len(value.encode()) > MOST_BYTES:
            raise ValueError(f"at most {MOST_BYTES} bytes of UTF-8: the beginning of the answer is enough")
        return value


class RegisterBody(BaseModel):
    """Register an adapter. A name that exists gets a new version; the same content again changes nothing."""

    model_config = ConfigDict(extra="forbid")
    name: AdapterName
    base: str = Field(description="id or alias of the base model")
    source: PathSource | HubSource
    alias: str | None = Field(default=None, description="an alias that is pointed at the new version")
    probe: ProbeBody | None = None


class AliasBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    version: str = Field(description="'v3' or 'sha256:…'")


class RollbackBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    version: str | None = None


class VllmLoadBody(BaseModel):
    """vLLM's own body; what is unknown to us is ignored, as vLLM does."""

    lora_name: AdapterName
    lora_path: str
    load_inplace: bool = False
    base_model_name: str | None = None


class VllmUnloadBody(BaseModel):
    lora_name: str
    lora_int_id: int | None = None


class AdapterEndpoints:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def routes(self) -> list[tuple[str, Any, list[str]]]:
        return [
            ("/v1/adapters", self.list, ["GET"]),
            ("/v1/adapters", self.register, ["POST"]),
            ("/v1/adapters/{name}", self.show, ["GET"]),
            ("/v1/adapters/{name}", self.remove, ["DELETE"]),
            ("/v1/adapters/{name}/aliases/{alias}", self.set_alias, ["PUT"]),
            ("/v1/adapters/{name}/aliases/{alias}", self.remove_alias, ["DELETE"]),
            ("/v1/adapters/{name}/rollback", self.rollback, ["POST"]),
            ("/v1/adapters/{name}/pin", self.pin, ["PUT"]),
            ("/v1/adapters/{name}/pin", self.unpin, ["DELETE"]),
            ("/v1/load_lora_adapter", self.vllm_load, ["POST"]),
            ("/v1/unload_lora_adapter", self.vllm_unload, ["POST"]),
        ]

    # --- look up --------------------------------------------------------------------------------------------------
    def _find(self, name: str) -> AdapterKey:
        return self.gateway.catalog.adapter(name).key

    def _base(self, name: str) -> ModelEntry:
        target = self.gateway.catalog.resolve(name)
        if target.adapter_name is not None:
            raise BadRequest(f"'{name}' is an adapter; 'base' must name a model.", param="base")
        return self.gateway.residency.get(target.recipe.id)

    def _only_base(self) -> ModelEntry:
        """The base of calls that name none: there must be exactly one that takes adapters."""
        takers = [e for e in self.gateway.residency.entries.values() if e.recipe.memory.adapters.device]
        if len(takers) != 1:
            names = ", ".join(e.id for e in takers) or "none"
            raise BadRequest(f"Say which base: 'base_model_name' is needed here. Models that take adapters: {names}.")
        return takers[0]

    async def _check_folder(self, path: str, param: str) -> None:
        settings = self.gateway.settings
        roots = settings.adapter_roots or (FilePath.cwd(), settings.data_dir)
        await asyncio.to_thread(check_folder, path, roots, param)

    def _changed(self, adapter: Adapter) -> dict[str, Any]:
        """After every change of an adapter: names and pins follow."""
        self.gateway.refresh()
        self.gateway.hold_pins(adapter)
        return adapter_view(self.gateway, adapter)

    # --- our own interface ----------------------------------------------------------------------------------------
    async def list(self, base: Annotated[str | None, Query()] = None) -> dict[str, Any]:
        entry = self._base(base) if base else None
        found = self.gateway.service.list(entry.id if entry else None)
        return {"object": "list", "data": [adapter_view(self.gateway, a) for a in found]}

    async def show(self, name: NamePath) -> dict[str, Any]:
        key = self._find(name)
        return adapter_view(self.gateway, self.gateway.service.show(key.base, key.name))

    async def register(self, request: Request, dry_run: Annotated[bool, Query()] = False) -> Response:
        """JSON `{name, base, source}`, or multipart with `name`, `base` and a tar, tar.gz or zip in `file`.

        The form takes `alias` too, and a probe as `probe_prompt` and `probe_expected`.
        """
        if request.headers.get("content-type", "").startswith("multipart/form-data"):
            return await self._upload(request, dry_run)
        data = parse_object(await read_body(request, self.gateway.settings.max_json))
        body = _typed(RegisterBody, data)
        return await self._register(body.name, body.base, body.source, dry_run, body.alias, _probe(body))

    async def _upload(self, request: Request, dry_run: bool) -> Response:
        limit = min(self.gateway.settings.max_adapter, self.gateway.service.limits.archive_bytes)
        fields: dict[str, str] = {}

        def on_field(name: str, value: str) -> None:
            """Judge what comes before the file, so that a wrong form does not cost an upload."""
            if name not in FORM_FIELDS or name in fields:
                raise BadRequest(f"The form's fields are {', '.join(FORM_FIELDS)}, once each, and 'file'.", param=name)
            fields[name] = value
            if "base" in fields:
                base = self._base(fields["base"])
                if "name" in fields:
                    self.gateway.catalog.check_adapter(AdapterKey(base.id, fields["name"]))

        try:
            folder = self.gateway.service.incoming
            async with receive(request, folder, limit, on_field, "archive", ".archive") as upload:
                body = _typed(RegisterBody, _form(fields))
                source = UploadedArchive(upload.path)
                return await self._register(body.name, body.base, source, dry_run, body.alias, _probe(body))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Unavailable as error:
            if error.code != "no_space":
                raise
            raise Unavailable(
                "The disk that holds the adapters is full. Nothing was registered.", code="disk_full", retry_after=30
            ) from error

    async def _register(
        self, name: str, base: str, source: AdapterSource, dry_run: bool, alias: str | None, probe: Probe | None
    ) -> Response:
        gateway = self.gateway
        where = gateway.base(self._base(base), name)
        if isinstance(source, PathSource):
            await self._check_folder(source.path, "source.path")
        if dry_run:
            checked = await gateway.service.validate(where, source)
            return JSONResponse(
                {
                    "object": "adapter.check", "name": name, "base": where.id, "fit": True, "digest": checked.digest,
                    "rank": checked.rank, "bytes": checked.bytes, "notes": list(checked.notes),
                }
            )  # fmt: skip
        done = await gateway.service.register(name, where, source, probe=probe, alias=alias)
        view = self._changed(done.adapter)
        return JSONResponse(
            {**view, "registered": done.version.tag, "new": done.created},
            201 if done.created else 200,
            headers={"Location": f"/v1/adapters/{name}"},
        )

    async def remove(
        self,
        name: NamePath,
        version: Annotated[str | None, Query()] = None,
        force: Annotated[bool, Query()] = False,
    ) -> dict[str, Any]:
        """Remove an adapter or one version of it. Refused while requests use it or aliases point to it."""
        key = self._find(name)
        gone = await self.gateway.service.remove(key.base, key.name, version, force=force)
        self.gateway.refresh()
        if entry := self.gateway.residency.entries.get(key.base):  # its recipe may be gone
            for digest in gone:
                self.gateway.queue(entry).forget_adapter(digest)
        await self.gateway.service.collect()
        return {"object": "adapter.deleted", "name": key.name, "base": key.base, "deleted": True, "digests": list(gone)}

    async def set_alias(self, name: NamePath, alias: str, body: AliasBody) -> dict[str, Any]:
        key = self._find(name)
        return self._changed(await self.gateway.service.alias(key.base, key.name, alias, body.version))

    async def remove_alias(self, name: NamePath, alias: str) -> dict[str, Any]:
        key = self._find(name)
        return self._changed(await self.gateway.service.unalias(key.base, key.name, alias))

    async def rollback(self, name: NamePath, body: RollbackBody | None = None) -> dict[str, Any]:
        """Make the version before the current one, or the one that is named, the current one."""
        key = self._find(name)
        ref = body.version if body else None
        return self._changed(await self.gateway.service.rollback(key.base, key.name, ref))

    async def pin(self, name: NamePath) -> dict[str, Any]:
        """Keep the current version in its device place."""
        return await self._pin(name, True)

    async def unpin(self, name: NamePath) -> dict[str, Any]:
        return await self._pin(name, False)

    async def _pin(self, name: str, pinned: bool) -> dict[str, Any]:
        key = self._find(name)
        adapter = self.gateway.service.show(key.base, key.name)
        self.gateway.hold_pins(replace(adapter, pinned=pinned))  # a Conflict leaves the registry as it was
        return self._changed(await self.gateway.service.pin(key.base, key.name, pinned))

    # --- vLLM's calls ---------------------------------------------------------------------------------------------
    async def vllm_load(self, body: VllmLoadBody) -> Response:
        entry = self._base(body.base_model_name) if body.base_model_name else self._only_base()
        where = self.gateway.base(entry, body.lora_name)
        await self._check_folder(body.lora_path, "lora_path")
        done = await self.gateway.service.register(body.lora_name, where, PathSource(path=body.lora_path))
        self._changed(done.adapter)
        return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.", media_type="text/plain")

    async def vllm_unload(self, body: VllmUnloadBody) -> Response:
        await self.remove(body.lora_name)
        return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", media_type="text/plain")


def _form(fields: dict[str, str]) -> dict[str, Any]:
    """A form's fields as the JSON body of a registration."""
    missing = [name for name in ("name", "base") if name not in fields]
    if missing:
        raise BadRequest("Send the fields 'name' and 'base', and the archive as 'file'.", param=missing[0])
    body: dict[str, Any] = {name: fields[name] for name in ("name", "base", "alias") if name in fields}
    probe = {name: fields[f"probe_{name}"] for name in ("prompt", "expected") if f"probe_{name}" in fields}
    return {**body, "source": {"path": "/"}, **({"probe": probe} if probe else {})}


def _probe(body: RegisterBody) -> Probe | None:
    return Probe(body.probe.prompt, body.probe.expected) if body.probe else None


T = TypeVar("T", bound=BaseModel)


def _typed(kind: type[T], data: dict[str, Any]) -> T:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or None
        raise BadRequest(f"{where or 'The body'}: {first['msg']}.", param=where) from None
