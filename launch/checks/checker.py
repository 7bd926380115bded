"""Run `launch.checks.process`, and remember by digest which files passed."""

import asyncio
import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from launch.checks.process import CheckJob, CheckResult
from models.engines import engine_version
from models.native import cache_folder, is_ours
from models.sources.resolve import digest
from registry.base.child import Child
from registry.errors import EngineFailed, Unfit
from registry.recipes.definition import Recipe

SECONDS = 300.0
"""Longest check: libraries take 5 to 15 s to import, and a network of hundreds of layers a few to build."""
FORM = 1
"""The version of the checks; files that an earlier one passed are checked again."""
LINE = 1 << 20


class FileChecker:
    """One process at a time: each takes all of a core."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def check(self, recipe: Recipe, folder: Path) -> None:
        """Raises Unfit (bad_files) with every fault, EngineFailed (check_failed)."""
        passed = await asyncio.to_thread(_mark, recipe, folder)
        async with self._lock:
            if passed is not None and passed.exists():
                return
            result = await self._run(recipe, folder)
        if result.faults:
            raise Unfit(
                f"{folder} cannot be served: {' '.join(result.faults)}", result.faults, code="bad_files", param="source"
            )
        if passed is not None:
            with contextlib.suppress(OSError):
                passed.touch()

    async def _run(self, recipe: Recipe, folder: Path) -> CheckResult:
        process = await Child.python("launch.checks.process", str(os.getpid()), limit=LINE)
        line = b""
        try:
            async with asyncio.timeout(SECONDS):
                job = CheckJob(str(folder), recipe.model_dump_json())
                process.stdin.write(msgspec.json.encode(job) + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            raise EngineFailed(
                f"The check of {folder} took more than {SECONDS:.0f} s and was ended.", code="check_failed"
            ) from None
        except ConnectionError:
            pass  # it ended before it had read what to do
        finally:
            process.kill()
            await process.wait()
        if not line.endswith(b"\n"):
            raise EngineFailed(
                f"The process that checks {folder} was ended while it read the files. Nothing was added. If it happens "
                "again, the files are the cause.",
                code="check_failed",
            )
        return msgspec.json.decode(line, type=CheckResult)


def _mark(recipe: Recipe, folder: Path) -> Path | None:
    """An empty file in the user's cache that says that these files passed; None: nowhere to put it."""
    try:
        place = cache_folder("checks")
    except RuntimeError:
        return None
    versions = [engine_version(name) for name in ("vllm", "sentence-transformers", "faster-whisper")]
    facts = [FORM, digest(folder), recipe.task.value, recipe.engine.flags, recipe.context_length, versions]
    return place / hashlib.sha256(msgspec.json.encode(facts)).hexdigest() if is_ours(place) else None
