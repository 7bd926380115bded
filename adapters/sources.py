"""Where an adapter comes from: a folder, a package, a hub, or an archive that a client uploads."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import Path

from adapters.types import Limits
from registry.errors import BadRequest, TooLarge
from registry.recipe import HubSource, PackageSource, PathSource

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class UploadedArchive:
    """A tar, tar.gz or zip file that `receive` wrote; register() leaves it where it is."""

    path: Path


AdapterSource = PathSource | PackageSource | HubSource | UploadedArchive


async def receive(chunks: AsyncIterable[bytes], path: Path, limits: Limits) -> UploadedArchive:
    """Write an upload to `path`, which must not exist. Nothing is left there when this raises.

    Raises TooLarge over `limits.archive_bytes`, BadRequest for an empty upload, OSError when the disk is full.
    """
    file = await asyncio.to_thread(open, path, "xb")
    size, pending = 0, bytearray()
    try:
        async for chunk in chunks:
            size += len(chunk)
            if size > limits.archive_bytes:
                raise TooLarge(f"The archive is larger than {limits.archive_bytes} bytes.", param="file")
            pending += chunk
            if len(pending) >= _BLOCK:
                await asyncio.to_thread(file.write, bytes(pending))
                pending.clear()
        await asyncio.to_thread(file.write, bytes(pending))
        await asyncio.to_thread(file.close)
        if not size:
            raise BadRequest("The uploaded file is empty.", param="file")
    except BaseException:  # also when the client leaves: nothing of the upload stays
        with contextlib.suppress(OSError):
            file.close()
        os.unlink(path)
        raise
    return UploadedArchive(path)
