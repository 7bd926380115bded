"""Run `launch.checks.process`, and remember the digests of files that passed."""

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
from registry.base.child import Child, out_of_memory
from registry.base.turns import FairTurns
from registry.errors import EngineFailed, Unfit
from registry.recipes.definition import Recipe

SECONDS = 300.0
"""Longest check. Imports take 5 to 15 s, and building hundreds of layers a few seconds."""
FORM = 1
"""Version of the checks. Files that passed an earlier version are checked again."""
LINE = 1 << 20


class FileChecker:
    """Checks files in one process at a time, as each uses a whole core. Teams take turns."""

    def __init__(self) -> None:
        self._turns = FairTurns()

    async def check(self, recipe: Recipe, folder: Path, team: str = "") -> None:
        """Check a model's files. Raises Unfit (bad_files) with its faults, EngineFailed.

        team: whose turn it is; '' for models that the server itself loads.
        """
        passed = await asyncio.to_thread(_mark, recipe, folder)
        async with self._turns.take(team):
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
                f"The check of {folder} took more than {SECONDS:.0f} s and was stopped.", code="check_failed"
            ) from None
        except ConnectionError:
            pass  # it ended before it read its job
        finally:
            process.kill()
            await process.wait()
        if not line.endswith(b"\n"):
            if await process.ran_out_of_memory():
                raise out_of_memory(f"while it checked {folder}. Nothing was added")
            raise EngineFailed(
                f"The process that checks {folder} was killed while it read the files. Nothing was added. If it "
                "happens again, the files are the cause.",
                code="check_failed",
            )
        return msgspec.json.decode(line, type=CheckResult)


def _mark(recipe: Recipe, folder: Path) -> Path | None:
    """Return the path of an empty file that marks passed files; None if there is no cache."""
    try:
        place = cache_folder("checks")
    except RuntimeError:
        return None
    versions = [engine_version(name) for name in ("vllm", "sentence-transformers", "faster-whisper")]
    facts = [FORM, digest(folder), recipe.task.value, recipe.engine.flags, recipe.context_length, versions]
    return place / hashlib.sha256(msgspec.json.encode(facts)).hexdigest() if is_ours(place) else None
