"""JSON bodies that are too large for memory, written to disk as they arrive."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

from fastapi import Request

from registry.storage.files import make_private
from runtime.gateway.core import Gateway
from runtime.gateway.uploads import UploadShare
from runtime.http.bodies import too_large_error
from runtime.http.upload import BUFFER, discard, new_file, share_of, storage_faults


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
    path = folder / secrets.token_hex(16)
    try:
        with storage_faults("The body could not be stored", "Nothing was created"):
            await asyncio.to_thread(make_private, folder)
            with share_of(request, services.uploads, folder) as share:
                async with new_file(path) as file:
                    digest = await _store(request, file, share, limit)
                yield StoredBody(path, digest)
    finally:
        await asyncio.shield(asyncio.to_thread(discard, path))


async def _store(request: Request, file: BufferedWriter, share: UploadShare, limit: int) -> str:
    """Write the body as it arrives. Returns its SHA-256. Raises TooLarge."""
    digest, size, pending = hashlib.sha256(), 0, bytearray()
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
    return digest.hexdigest()


def _write(file: BufferedWriter, pending: bytearray, digest: "hashlib._Hash") -> None:
    data = bytes(pending)
    pending.clear()
    digest.update(data)
    file.write(data)
    file.flush()
