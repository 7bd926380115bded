"""JSON bodies that are too large for memory, written to disk as they arrive."""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

from fastapi import Request

from registry.errors import StorageFull, Unavailable
from registry.storage.files import make_private
from runtime.gateway.core import Gateway
from runtime.http.bodies import too_large_error
from runtime.http.guard.memory import SHARES, owners_of
from runtime.http.middleware import context_of
from runtime.http.upload import BUFFER, discard, new_file


@dataclass(frozen=True, slots=True)
class StoredBody:
    """A body on disk. `path` exists until the context of `receive_body` ends. `digest`: SHA-256 of the body."""

    path: Path
    digest: str


@asynccontextmanager
async def receive_body(request: Request, gateway: Gateway) -> AsyncIterator[StoredBody]:
    """Receive the body as a file.

    `guard.bodies` bounds its pace and decompresses it. Raises TooLarge as soon as it exceeds `max_file`, StorageFull,
    and QueueFull if all bodies and uploads, or those of the caller, are too large together.
    """
    services, limit = gateway.services, gateway.services.settings.max_file
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large_error(limit)
    folder = services.batches.incoming
    address = request.client.host if request.client else ""
    owners = owners_of(context_of(request.scope).caller, address)
    path, digest, size, pending = folder / secrets.token_hex(16), hashlib.sha256(), 0, bytearray()
    try:
        await asyncio.to_thread(make_private, folder)
        with services.uploads.share(folder, {owner: SHARES[owner[0]] for owner in owners}) as share:
            async with new_file(path) as file:
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limit:
                        raise too_large_error(limit)
                    share.add(len(chunk))
                    pending += chunk
                    if len(pending) >= BUFFER:
                        await asyncio.to_thread(_write, file, pending, digest)
                        share.written()
                await asyncio.to_thread(_write, file, pending, digest)
                share.written()
            yield StoredBody(path, digest.hexdigest())
    except Unavailable as error:
        if error.code != "storage_full":
            raise
        raise StorageFull(error.message, code="storage_full") from error
    except OSError as error:
        text = f"The body could not be stored: {os.strerror(error.errno or 0)}. Nothing was created."
        raise StorageFull(text, code="storage_full") from error
    finally:
        await asyncio.shield(asyncio.to_thread(discard, path))


def _write(file: BufferedWriter, pending: bytearray, digest: "hashlib._Hash") -> None:
    data = bytes(pending)
    pending.clear()
    digest.update(data)
    file.write(data)
    file.flush()
