"""Whisper checkpoints converted to CTranslate2, and GGUF files to safetensors, stored by their source's digest.

| call | no conversion is needed | it was made        | it was not                                       |
|------|-------------------------|--------------------|--------------------------------------------------|
| find | the folder itself       | the converted one  | None                                             |
| make | the same                | the same           | a process makes it; those who ask meanwhile wait |
|      |                         |                    | for it; if who began it leaves, it ends, and     |
|      |                         |                    | the next one begins anew                         |
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
from registry.base.child import Child
from registry.base.json import read_object
from registry.errors import EngineFailed, Unavailable, by_status
from registry.recipes.definition import Recipe, Task
from registry.storage.files import sync_folder
from registry.storage.reserve import DiskReserve

FORM = 2
"""Format of conversions; those of an earlier one are made anew. 2: with languages, and only alignment_heads that
exist."""
SECONDS = 1800.0
"""Longest conversion. large-v3 takes about a minute on two cores."""


def needs_conversion(folder: Path) -> bool:
    """Whether it is a Whisper that CTranslate2 does not read as it is."""
    if (folder / "model.bin").is_file() and not any(folder.glob("*.safetensors")):
        return False
    return read_object(folder / "config.json").get("model_type") == "whisper"


def _ignore(_come: int, _whole: int | None) -> None:
    """Stands for a caller that shows no progress."""


class Conversions:
    """Converted models below `root`, one folder for each.

    Args:
        reserve: of its disk, which no conversion touches.
    """

    def __init__(self, root: Path, seconds: float = SECONDS, reserve: DiskReserve | None = None) -> None:
        self._root, self._seconds = root.absolute(), seconds
        self._reserve = reserve or DiskReserve(root)
        self._lock = asyncio.Lock()

    def tidy(self) -> None:
        """Remove what a killed server had not finished."""
        for half in self._root.glob("*.half"):
            shutil.rmtree(half, ignore_errors=True)

    def find(self, recipe: Recipe, folder: Path) -> Path | None:
        """The folder that the engine is to read; None: it is to be made first."""
        is_needed = {Task.TRANSCRIBE: needs_conversion, Task.CHAT: gguf_of}.get(recipe.task)
        if is_needed is None or not is_needed(folder):
            return folder
        converted = self._target(folder)
        return converted if converted.is_dir() else None

    async def make(self, recipe: Recipe, folder: Path, on_progress: Fetched = _ignore) -> Path:
        """The converted model, made if need be.

        Args:
            on_progress: is called with the bytes that are converted, and all of them, while a GGUF is read.

        Raises Unfit, EngineFailed (conversion_failed), Unavailable (disk_full, storage_full).
        """
        async with self._lock:  # one at a time: each takes all that the machine can give
            converted = await asyncio.to_thread(self.find, recipe, folder)
            return converted if converted is not None else await self._convert(folder, on_progress)

    def purge(self, paths: Iterable[Path]) -> int:
        """Delete those of these folders that were converted here; returns bytes. Blocks."""
        freed = 0
        for path in paths:
            if path.parent == self._root and path.is_dir():
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
            raise Unavailable(f"{self._root} cannot be made: {error.strerror}.", code="disk_full") from error
        with self._reserve.hold(await asyncio.to_thread(_most_bytes, folder)):
            return await self._run(folder, target, on_progress)

    async def _run(self, folder: Path, target: Path, on_progress: Fetched) -> Path:
        half = target.with_suffix(".half")
        await asyncio.to_thread(
            shutil.rmtree, half, ignore_errors=True
        )  # left by an attempt that could not be cleaned up
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
                f"The conversion of {folder} took more than {self._seconds:.0f} s and was ended.",
                code="conversion_failed",
            ) from None
        finally:
            process.kill()
            await process.wait()
            if answer is None or isinstance(answer, FetchProgress):
                shutil.rmtree(half, ignore_errors=True)
        if isinstance(answer, FetchFailed):
            await asyncio.to_thread(shutil.rmtree, half, ignore_errors=True)
            raise by_status(answer.status)(answer.message, code=answer.code)
        if not isinstance(answer, FetchDone):
            raise EngineFailed(f"The process that converted {folder} was ended. Ask again.", code="conversion_failed")
        await asyncio.to_thread(_publish, half, target)
        former = self._root / target.name.partition("-")[0]
        await asyncio.to_thread(shutil.rmtree, former, ignore_errors=True)
        return target


def _most_bytes(folder: Path) -> int:
    """Bytes that a conversion may write. A value of a GGUF takes two bits or more, and 16 afterwards."""
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return size * 8 if gguf_of(folder) else size


def _publish(half: Path, target: Path) -> None:
    """Publish a folder whole, or not at all, also through a loss of power."""
    os.replace(half, target)
    sync_folder(target.parent)
