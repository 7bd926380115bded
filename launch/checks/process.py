"""The process that checks a model's files: one job, one answer."""

import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from launch.checks.files import broken_files
from models.process_control import die_with_parent
from registry.errors import RoundhouseError
from registry.recipes.definition import Recipe, Task


class CheckJob(msgspec.Struct, frozen=True):
    folder: str
    recipe: str
    """The recipe as JSON."""


class CheckResult(msgspec.Struct, frozen=True):
    faults: tuple[str, ...] = ()
    """Sentences: what is wrong, and what to do."""


def main() -> None:
    """Check what standard input names. It ends with the process that started it."""
    die_with_parent(int(sys.argv[1]))
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing but the answer may go to the pipe
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # nothing of it is read by anyone
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=CheckJob)
    os.write(answers, msgspec.json.encode(check(Recipe.model_validate_json(job.recipe), Path(job.folder))) + b"\n")
    os._exit(0)  # libraries take a second to end


def check(recipe: Recipe, folder: Path) -> CheckResult:
    """Every fault of the files for which the model could not be served. Blocks for seconds."""
    if faults := tuple(broken_files(folder)):
        return CheckResult(faults)
    try:
        return CheckResult(tuple(_by_task(recipe.task)(recipe, folder)))
    except RoundhouseError as error:
        return CheckResult((error.message,))
    except Exception as error:  # a library's own, of files that it cannot load
        traceback.print_exc()
        text = (str(error).strip().splitlines() or [""])[0][:300]
        return CheckResult((f"Its files cannot be loaded ({type(error).__name__}: {text}).",))


def _by_task(task: Task) -> Callable[[Recipe, Path], Iterable[str]]:
    """Imported as needed: each brings libraries that take seconds."""
    match task:
        case Task.CHAT:
            sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]  # transformers takes 3 s for it
            from launch.checks import chat

            return chat.faults_of
        case Task.TRANSCRIBE:
            from launch.checks import speech

            return speech.faults_of
        case _:
            from launch.checks import text

            return text.faults_of


if __name__ == "__main__":
    main()
