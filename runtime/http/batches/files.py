"""OpenAI's Files: upload, list, show, read, delete. Another team's files do not exist for a caller."""

import asyncio
import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import Path, Query, Request
from fastapi.responses import Response

from batches.intake.stored_files import BATCH, LIFE_SECONDS, PURPOSES, NewFile, missing_error
from batches.output import OutputKind
from batches.records import BatchRecord
from batches.service import BatchService
from registry.base.wording import quoted
from registry.errors import BadRequest, NotFound
from registry.storage.files import make_private
from runtime.gateway.context import RequestContext
from runtime.http.admin.bodies import json_answer
from runtime.http.batches.idempotency import idempotency_key
from runtime.http.batches.reading import file_answer, output_answer, output_size
from runtime.http.batches.views import batch_of_output, file_view, has_output, output_view
from runtime.http.errors import Dialect, error_response
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.organization.pages import LIST, After, Order, list_answer
from runtime.http.route import RouteGroup
from runtime.http.schema import BOOLEAN, COUNT, MANAGEMENT, STRING, component, one_of, record
from runtime.http.upload import Upload, receive, storage_faults
from tenants.caller import Scope

route = partial(RouteGroup("Files"), errors=(*MANAGEMENT, 429, 503))
PATH = "/v1/files"
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FIELDS = ("purpose", ANCHOR, SECONDS)
LEAST_LIFE = 3600
MOST_NAME = 255
FORM = component(
    "FileForm",
    record(
        {
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            "purpose": {**one_of(*PURPOSES), "description": "`batch`: the input of a batch, one request a line."},
            ANCHOR: {**one_of("created_at"), "description": "With the next: a life other than 30 days."},
            SECONDS: {"type": "integer", "minimum": LEAST_LIFE, "maximum": LIFE_SECONDS},
        },
        ["file", "purpose"],
        open_=False,
    ),
)
FILE = component(
    "File",
    record(
        {
            "id": STRING,
            "object": {"const": "file"},
            "bytes": COUNT,
            "created_at": COUNT,
            "expires_at": COUNT,
            "filename": STRING,
            "purpose": STRING,
            "status": {**one_of("uploaded", "processed", "error"), "description": "Whether its check found a fault."},
            "status_details": {**STRING, "description": "The first fault of a batch's input."},
        },
        ["id", "object", "bytes", "created_at", "filename", "purpose", "status"],
    ),
)
DELETED = component("FileDeleted", record({"id": STRING, "object": {"const": "file"}, "deleted": BOOLEAN}))
Id = Annotated[str, Path(alias="file_id", max_length=128)]


@route(
    "POST",
    PATH,
    scope=Scope.INFER,
    answer=FILE,
    body={"multipart/form-data": FORM},
    errors=(*MANAGEMENT, 408, 409, 413, 429, 503, 507),
)
async def upload_file(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Upload a file.

    A file with the purpose `batch` is checked before the answer: its `status` is then `processed`, or `error` with the
    first fault. It is deleted after 30 days, or after `expires_after`.
    """
    if (refused := _anthropic_refusal(request)) is not None:
        return refused
    service, key = gateway.services.batches, idempotency_key(request)
    fields: dict[str, str] = {}

    def on_field(name: str, value: str) -> None:
        """Judge what comes before the file, so that a wrong form does not cost an upload."""
        if name not in FIELDS or name in fields:
            raise BadRequest(f"The form's fields are {', '.join(FIELDS)}, once each, and 'file'.", param=name)
        fields[name] = value
        if name == "purpose":
            _check_purpose(value)

    limit = gateway.services.settings.max_file
    with storage_faults("The file could not be stored", "Nothing was stored"):
        await asyncio.to_thread(make_private, service.incoming)
        async with receive(request, gateway.services.uploads, service.incoming, limit, on_field, "file", "") as upload:
            new = await _new_file(context, fields, upload, key)
            return json_answer(file_view(await service.files.add(new, upload.path, upload.size)))


@route("GET", PATH, scope=Scope.INFER, answer=LIST)
async def list_files(
    request: Request,
    gateway: CurrentGateway,
    context: CurrentContext,
    purpose: Annotated[str | None, Query(description="Files of this purpose only")] = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Entries per page")] = 10_000,
    order: Order = "desc",
) -> Response:
    """List files.

    Those that were uploaded; output files of batches are named in the batch.
    """
    if (refused := _anthropic_refusal(request)) is not None:
        return refused
    files, more = await gateway.services.batches.files.list(
        context.caller.team, purpose, after, limit, newest=order == "desc"
    )
    return list_answer([file_view(file) for file in files], more)


@route("GET", f"{PATH}/{{file_id}}", scope=Scope.INFER, answer=FILE)
async def get_file(request: Request, gateway: CurrentGateway, context: CurrentContext, file_id: Id) -> Response:
    """Show a file."""
    if (refused := _anthropic_refusal(request)) is not None:
        return refused
    service = gateway.services.batches
    if (output := await _output(service, context, file_id)) is None:
        return json_answer(file_view(await service.files.get(context.caller.team, file_id)))
    batch, kind = output
    return json_answer(output_view(batch, kind, await output_size(service, batch, kind)))


@route(
    "GET",
    f"{PATH}/{{file_id}}/content",
    scope=Scope.INFER,
    answer={"application/octet-stream": STRING, "application/jsonl": STRING},
    others={206: ("A part, with `Range`.", {"application/octet-stream": STRING, "application/jsonl": STRING})},
)
async def get_file_content(request: Request, gateway: CurrentGateway, context: CurrentContext, file_id: Id) -> Response:
    """Read a file.

    The output of a batch comes in the order of its input. `Range` with one part is honoured.
    """
    part = request.headers.get("range", "")
    if (refused := _anthropic_refusal(request)) is not None:
        return refused
    service = gateway.services.batches
    if (output := await _output(service, context, file_id)) is not None:
        batch, kind = output
        return await output_answer(service, batch, kind, part)
    return file_answer(service, await service.files.get(context.caller.team, file_id), part)


@route("DELETE", f"{PATH}/{{file_id}}", scope=Scope.INFER, answer=DELETED)
async def delete_file(request: Request, gateway: CurrentGateway, context: CurrentContext, file_id: Id) -> Response:
    """Delete a file.

    A batch that runs keeps the bytes of its input until it has ended. Deleting an output file removes its answers.
    """
    if (refused := _anthropic_refusal(request)) is not None:
        return refused
    service = gateway.services.batches
    if (output := await _output(service, context, file_id)) is not None:
        await service.forget(output[0].id, output[1])
    else:
        await service.files.delete(context.caller.team, file_id)
    return json_answer({"id": file_id, "object": "file", "deleted": True})


async def _output(
    service: BatchService, context: RequestContext, file_id: str
) -> tuple[BatchRecord, OutputKind] | None:
    """The batch and kind that an id of an output file names; None: it is another id. Raises NotFound."""
    named = batch_of_output(file_id)
    if named is None:
        return None
    try:
        batch = await service.get(context.caller.team, named[0])
    except NotFound:
        raise missing_error(file_id) from None
    if not has_output(batch, named[1]) or not await service.has_lines(batch, named[1]):
        raise missing_error(file_id)
    return batch, named[1]


def _anthropic_refusal(request: Request) -> Response | None:
    """Anthropic's SDK has files on the same path, in another form, which this server does not have."""
    if "anthropic-version" not in request.headers:
        return None
    error = NotFound(f"There is no {quoted(request.url.path)} in Anthropic's form here.", code="unknown_path")
    return error_response(error, Dialect.ANTHROPIC)


def _check_purpose(purpose: str) -> None:
    if purpose not in PURPOSES:
        raise BadRequest(f"The purpose of a file is one of {', '.join(PURPOSES)}.", param="purpose")


async def _new_file(context: RequestContext, fields: Mapping[str, str], upload: Upload, key: str) -> NewFile:
    """Raises BadRequest."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise BadRequest(f"Say in 'purpose' what the file is for: {', '.join(PURPOSES)}.", param="purpose")
    name = "".join(letter if letter.isprintable() else "\ufffd" for letter in upload.name)[-MOST_NAME:]
    if purpose == BATCH and not name.endswith(".jsonl"):
        raise BadRequest("The name of a batch's input must end in .jsonl: one request a line.", param="file")
    life = _life(fields.get(ANCHOR), fields.get(SECONDS))
    body_hash = await asyncio.to_thread(_hash, upload.path, f"{purpose}\n{name}\n{life}\n") if key else ""
    return NewFile(
        team=context.caller.team, name=name or "file", purpose=purpose, life=life, idempotency=key, body_hash=body_hash
    )


def _life(anchor: str | None, seconds: str | None) -> int:
    if anchor is None and seconds is None:
        return LIFE_SECONDS
    if anchor != "created_at":
        raise BadRequest(f"Send {ANCHOR}=created_at with {SECONDS}.", param=ANCHOR)
    if seconds is None or not seconds.isascii() or not seconds.isdigit():
        raise BadRequest(f"Send a whole number as {SECONDS}.", param=SECONDS)
    if not LEAST_LIFE <= (life := int(seconds[:12])) <= LIFE_SECONDS:
        raise BadRequest(f"{SECONDS} may be {LEAST_LIFE} to {LIFE_SECONDS}.", param=SECONDS)
    return life


def _hash(path: FilePath, start: str) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(start.encode())
    return digest.hexdigest()
