"""Convert Whisper checkpoints to CTranslate2, and GGUF files to safetensors.

Conversions are stored by their source's digest.

| call | none is needed    | exists               | does not exist                                               |
|------|-------------------|----------------------|--------------------------------------------------------------|
| find | the folder itself | the converted folder | None                                                         |
| make | the same          | the same             | a process converts it, and other callers wait; if the first  |
|      |                   |                      | caller leaves, the process ends and the next one starts anew |
"""

import asyncio
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from launch.conversion.gguf import gguf_of
from models.sources.fetching import Answer, FetchDone, FetchFailed, FetchProgress
from models.sources.resolve import Fetched, digest
from registry.base.child import Child, out_of_memory
from registry.base.json import read_object
from registry.errors import EngineFailed, Unavailable, by_status
from registry.recipes.definition import Recipe, Task
from registry.storage.files import sync_folder
from registry.storage.reserve import DiskReserve

FORM = 4
"""Version of the conversion; older ones are redone. 4: more kinds of GGUF split texts right, no quantized Whisper."""
SECONDS = 1800.0
"""Longest conversion. large-v3 takes about a minute on two cores."""


def needs_conversion(folder: Path) -> bool:
    """Return whether it is a Whisper that CTranslate2 cannot read directly."""
    if (folder / "model.bin").is_file() and not any(folder.glob("*.safetensors")):
        return False
    return read_object(folder / "config.json").get("model_type") == "whisper"


def _ignore(_done: int, _total: int | None) -> None:
    """Ignore progress."""


class Conversions:
    """Converted models below `root`, one folder each.

    Args:
        reserve: space on its disk that conversions must not use.
    """

    def __init__(self, root: Path, seconds: float = SECONDS, reserve: DiskReserve | None = None) -> None:
        self._root, self._seconds = root.absolute(), seconds
        self._reserve = reserve or DiskReserve(root)
        self._lock = asyncio.Lock()

    def tidy(self) -> None:
        """Remove unfinished conversions of a killed server."""
        for half in self._root.glob("*.half"):
            shutil.rmtree(half, ignore_errors=True)

    def find(self, recipe: Recipe, folder: Path) -> Path | None:
        """Return the folder for the engine to read, or None if it must be converted first."""
        is_needed = {Task.TRANSCRIBE: needs_conversion, Task.CHAT: gguf_of}.get(recipe.task)
        if is_needed is None or not is_needed(folder):
            return folder
        converted = self._target(folder)
        return converted if converted.is_dir() else None

    async def make(self, recipe: Recipe, folder: Path, on_progress: Fetched = _ignore) -> Path:
        """Return the converted model, and convert it if necessary.

        Args:
            on_progress: called with the bytes done and the total while a GGUF is read.

        Raises Unfit, EngineFailed (conversion_failed), Unavailable (disk_full, storage_full).
        """
        async with self._lock:  # one at a time, as each uses the whole machine
            converted = await asyncio.to_thread(self.find, recipe, folder)
            return converted if converted is not None else await self._convert(folder, on_progress)

    def made(self, path: Path) -> bool:
        """Return whether a folder was converted here."""
        return path.parent == self._root

    def purge(self, paths: Iterable[Path]) -> int:
        """Delete folders that were converted here, and return their bytes. Blocks."""
        freed = 0
        for path in paths:
            if self.made(path) and path.is_dir():
                freed += sum(file.stat().st_size for file in path.iterdir())
                shutil.rmtree(path)
        return freed

    def _target(self, folder: Path) -> Path:
        return self._root / f"{digest(folder)}-{FORM}"

    async def _convert(self, folder: Path, on_progress: Fetched) -> Path:
        target = await asyncio.to_thread(self._target, folder)
        try:
            await asyncio.to_thread(self._root.mkdir, parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(f"{self._root} cannot be created: {error.strerror}.", code="disk_full") from error
        with self._reserve.hold(await asyncio.to_thread(_most_bytes, folder)):
            return await self._run(folder, target, on_progress)

    async def _run(self, folder: Path, target: Path, on_progress: Fetched) -> Path:
        half = target.with_suffix(".half")
        # it may be left by an attempt that could not be cleaned up
        await asyncio.to_thread(shutil.rmtree, half, ignore_errors=True)
        process = await Child.python("launch.conversion.process", str(os.getpid()), str(folder), str(half))
        answer: Answer | None = None
        try:
            async with asyncio.timeout(self._seconds):
                while line := await process.stdout.readline():
                    answer = msgspec.json.decode(line, type=Answer)
                    if not isinstance(answer, FetchProgress):
                        break
                    on_progress(answer.come, answer.whole)
        except TimeoutError:
            raise EngineFailed(
                f"The conversion of {folder} took more than {self._seconds:.0f} s and was stopped.",
                code="conversion_failed",
            ) from None
        finally:
            process.kill()
            await process.wait()
            if not isinstance(answer, FetchDone):
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, half, ignore_errors=True))
        if isinstance(answer, FetchFailed):
            raise by_status(answer.status)(answer.message, code=answer.code)
        if not isinstance(answer, FetchDone):
            if await process.ran_out_of_memory():
                raise out_of_memory(f"while it converted {folder}")
            raise EngineFailed(f"The process that converted {folder} was killed. Try again.", code="conversion_failed")
        await asyncio.to_thread(_publish, half, target)
        former = self._root / target.name.partition("-")[0]
        await asyncio.to_thread(shutil.rmtree, former, ignore_errors=True)
        return target


def _most_bytes(folder: Path) -> int:
    """Return the most bytes that a conversion writes: GGUF values of at least 2 bits become 16."""
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return size * 8 if gguf_of(folder) else size


def _publish(half: Path, target: Path) -> None:
    """Publish a folder atomically, even across a loss of power."""
    os.replace(half, target)
    sync_folder(target.parent)
