"""The fetch process, `python -m models.sources.fetch_process PARENT`."""

import os
import sys
import threading
import time
import traceback
from pathlib import Path

import msgspec
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
from pydantic import TypeAdapter

from models.process_control import die_with_parent
from models.sources.fetching import Answer, FetchDone, FetchFailed, FetchProgress
from models.sources.large_files import fetch_large_files
from models.sources.repository import check_disk, check_files, files_of, keep_name
from models.sources.resolve import resolve
from registry.errors import RoundhouseError
from registry.recipes.fields import GgufSource, HubSource

EVERY_SECONDS = 0.2


def main() -> None:
    """Fetch what standard input names. It ends with the process that started it."""
    die_with_parent(int(sys.argv[1]))
    disable_progress_bars()
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing but answers may go to the pipe
    source: HubSource = TypeAdapter(GgufSource | HubSource).validate_json(sys.stdin.buffer.readline())
    os.nice(10)  # requests come first
    _send(answers, _fetch(source, answers))


def _fetch(source: HubSource, answers: int) -> Answer:
    latest: FetchProgress | None = None

    def on_progress(come: int, whole: int | None) -> None:
        nonlocal latest
        latest = FetchProgress(come, whole)

    def tell() -> None:
        """Report by a clock: after the last of several pieces nothing may come for long."""
        sent = None
        while True:
            if (now := latest) is not None and now != sent:
                _send(answers, now)
                sent = now
            time.sleep(EVERY_SECONDS)

    threading.Thread(target=tell, daemon=True).start()
    try:
        files = files_of(source)
        check_disk(source, files)
        pinned = source.model_copy(update={"revision": files.commit})
        fetch_large_files(pinned, files, on_progress)
        folder = resolve(pinned, Path.cwd())  # a branch may have moved on meanwhile
        check_files(source, folder, files)
        keep_name(source, files.commit)
    except RoundhouseError as error:
        return FetchFailed(error.status, error.code, error.message, error.retry_after)
    except OSError as error:
        why = f"'{source.hub}' could not be stored: {error.strerror or error}."
        return FetchFailed(503, "source_not_stored", f"{why} Make room, or point HF_HOME to another disk.")
    except Exception as error:
        traceback.print_exc()
        return FetchFailed(
            503, "download_failed", f"'{source.hub}' could not be fetched: {type(error).__name__}: {error}"
        )
    return FetchDone(str(folder))


def _send(to: int, answer: Answer) -> None:
    os.write(to, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
