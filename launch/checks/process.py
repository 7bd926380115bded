"""The process that checks a model's files, with one job and one answer."""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from importlib import import_module
from itertools import islice
from pathlib import Path

import msgspec

from models.broken_files import SETTINGS, VOCABULARIES
from models.process_control import die_with_parent
from registry.base.importing import TRAINING, fast_imports
from registry.base.wording import first_line
from registry.errors import RoundhouseError, short
from registry.files import git_lfs
from registry.recipes.definition import Recipe, Task

JSONS = (*SETTINGS, *VOCABULARIES, "*sentence*.json", "*.index.json", "*/config.json")
"""Files that an engine or its library parses."""
TEXTS = ("chat_template.jinja", "merges.txt", "vocab.txt")
MOST_FAULTS, LONGEST = 100, 1000
"""Most faults of an answer, and bytes of each, as the server reads a line of bounded length."""


def broken_files(folder: Path) -> Iterator[str]:
    """Yield a sentence for each file whose content does not match its name."""
    for file in sorted((*folder.glob("*"), *folder.glob("*/config.json"))):
        name = str(file.relative_to(folder))
        if any(fnmatch(name, pattern) for pattern in (*JSONS, *TEXTS)) and git_lfs.is_pointer_file(file):
            yield f"{name} {git_lfs.FAULT}"
        elif any(fnmatch(name, pattern) for pattern in JSONS):
            try:
                json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                yield f"{name} is not JSON ({error}): copy it again from where the model came from."
        elif name in TEXTS and not file.stat().st_size:
            yield f"{name} is empty: copy it again from where the model came from, or remove it."


class CheckJob(msgspec.Struct, frozen=True):
    folder: str
    recipe: str
    """The recipe as JSON."""


class CheckResult(msgspec.Struct, frozen=True):
    faults: tuple[str, ...] = ()
    """Sentences that say what is wrong and what to do."""


def main() -> None:
    """Run the job from standard input. Ends early if the parent process ends."""
    die_with_parent(int(sys.argv[1]))
    answers = os.dup(1)
    os.dup2(2, 1)  # only the answer may go to the pipe
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=CheckJob)
    os.write(answers, msgspec.json.encode(check(Recipe.model_validate_json(job.recipe), Path(job.folder))) + b"\n")
    os._exit(0)  # skips the libraries' exit handlers, which take a second


def check(recipe: Recipe, folder: Path) -> CheckResult:
    """Return the faults that would prevent serving the model, at most MOST_FAULTS. Blocks for seconds."""
    if faults := _few(broken_files(folder)):
        return CheckResult(faults)
    try:
        return CheckResult(_few(_by_task(recipe.task)(recipe, folder)))
    except RoundhouseError as error:
        return CheckResult((error.message,))
    except Exception as error:  # a library's error for files that it cannot load
        traceback.print_exc()
        return CheckResult((f"Its files cannot be loaded ({type(error).__name__}: {first_line(error)}).",))


def _few(faults: Iterable[str]) -> tuple[str, ...]:
    return tuple(short(fault, LONGEST) for fault in islice(faults, MOST_FAULTS))


def _by_task(task: Task) -> Callable[[Recipe, Path], Iterable[str]]:
    """Import a task's checks, whose libraries take seconds to import."""
    match task:
        case Task.CHAT:
            with fast_imports(*TRAINING):
                for name in ("modeling_utils", "models.auto.modeling_auto"):
                    import_module(f"transformers.{name}")
            from launch.checks import chat

            return chat.faults_of
        case Task.TRANSCRIBE:
            from launch.checks.loading import whisper_faults

            return whisper_faults
        case _:
            from launch.checks.loading import encoder_faults

            return encoder_faults


if __name__ == "__main__":
    main()
