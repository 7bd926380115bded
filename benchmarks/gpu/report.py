"""The results of the acceptance run: one file that is complete after each step."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import environment, machine
from models import nvml
from registry.storage.files import write_text

LONGEST_FAULT = 1500
"""Characters."""


def text_of_fault(fault: Exception) -> str:
    """Return an error's type and text; of a request that a server refused, also the server's answer with the cause."""
    answer = f": {fault.response.text}" if isinstance(fault, httpx.HTTPStatusError) else ""
    return f"{type(fault).__name__}: {fault}{answer}"[:LONGEST_FAULT]


class OtherRun(ValueError):
    """A results file that this run cannot resume."""


class Report:
    """The results file: hardware, versions, commands, and the results of each step."""

    def __init__(
        self,
        file: Path,
        device: str,
        wake_seconds: float = 2.0,
        *,
        shape: str = "",
        resume: bool = False,
        recipe: Mapping[str, object] | None = None,
    ) -> None:
        """Begin a results file, or resume one.

        Args:
            wake_seconds: how long to measure the cost of a wake-up.
            shape: the name of the model's shape.
            resume: keep the results of an earlier run, if there are any. Raises OtherRun if they are of another
                commit, card or shape, or of other values of the recipe.
            recipe: the values of `--recipe`, by their keys.
        """
        self._file, self._is_written = file, True
        gpu: dict[str, object] = {"shape": shape} if shape else {}
        if device != "cpu":
            result = nvml.gpu(device)
            gpu |= {"gpu": result.name, "gpu_bytes": result.total, "driver": nvml.driver()}
        if recipe:
            gpu["recipe"] = dict(recipe)
        run = " ".join(["python", "-m", "benchmarks.gpu.acceptance", *sys.argv[1:]])
        goes_on = resume and file.exists()
        costs = {} if goes_on else machine.record(device, wake_seconds)  # the earlier run's stay
        self._held: dict[str, Any] = {
            "schema": 1,
            "environment": {**environment.record(), **gpu, "command": run, **costs},
            "servers": {},
            "steps": {},
            "finished": [],
        }
        if goes_on:
            self._go_on_with(json.loads(file.read_text()))
        elif file.exists():
            earlier = file.with_suffix(".earlier.json")
            file.replace(earlier)
            print(f"no --resume: starting a new results file; the old one is now {earlier}", flush=True)
        self._write()

    def _go_on_with(self, earlier: dict[str, Any]) -> None:
        now, then = self._held["environment"], earlier["environment"]
        for key in ("commit", "gpu", "shape", "recipe"):
            if now.get(key) != then.get(key):
                raise OtherRun(f"{self._file} has results of {key} {then.get(key)}, but this run's is {now.get(key)}: "
                               "name another file with --results, or leave out --resume")  # fmt: skip
        self._held = {"finished": [], **earlier}
        self._held.setdefault("resumed", []).append({key: now[key] for key in ("time", "command")})

    @property
    def environment(self) -> Mapping[str, Any]:
        """Hardware, versions, commit and time."""
        result: Mapping[str, Any] = self._held["environment"]
        return result

    @property
    def steps(self) -> Mapping[str, Mapping[str, Any]]:
        """The results of each step."""
        result: Mapping[str, Mapping[str, Any]] = self._held["steps"]
        return result

    @property
    def folder(self) -> Path:
        """Folder of the results file and of the files that `keep` copied."""
        return self._file.parent

    def server(self, name: str, command: Sequence[str]) -> None:
        """Record the command of a server."""
        self._held["servers"][name] = " ".join(command)

    def add(self, step: str, ok: bool, **figures: Any) -> None:
        self._held["steps"][step] = {"ok": ok, **figures}
        self._write()
        text = json.dumps(figures)
        print(f"{'ok   ' if ok else 'WRONG'} {step}: {text[:300] if self._is_written else text}", flush=True)

    def leave_out(self, part: str, why: str) -> None:
        """Record that a part, or a piece of one, was not measured."""
        self._held.setdefault("left_out", {})[part] = why
        self._write()
        print(f"left out {part}: {why}", flush=True)

    def begin(self, part: str) -> None:
        """Remove an earlier run's records that the part ended early or that pieces of it were left out."""
        self._held["steps"].pop(f"{part} ended early", None)
        for piece in self._left_out_of(part):
            del self._held["left_out"][piece]

    def finish(self, part: str) -> None:
        """Record that a part is complete, so that a resumed run skips it. Does nothing if pieces were left out."""
        if part not in self._held["finished"] and not self._left_out_of(part):
            self._held["finished"].append(part)
        self._write()

    def _left_out_of(self, part: str) -> list[str]:
        return [piece for piece in self._held.get("left_out", {}) if piece == part or piece.startswith(f"{part}: ")]

    def is_finished(self, part: str) -> bool:
        return part in self._held["finished"]

    def keep(self, files: Iterable[Path]) -> None:
        """Copy files beside the results."""
        for file in files:
            shutil.copy(file, self.folder)

    def close(self) -> None:
        """Write once more, because the disk may have been full before."""
        self._write()

    def _write(self) -> None:
        """Write the file atomically, so that a run that is killed leaves the previous version."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self._file, json.dumps(self._held, indent=1, ensure_ascii=False) + "\n")
            self._is_written = True
        except OSError as fault:
            self._is_written = False
            print(f"{self._file} cannot be written: {fault}", file=sys.stderr, flush=True)

    @property
    def ok(self) -> bool:
        """Whether all steps are right and the file was written."""
        return self._is_written and all(step["ok"] for step in self._held["steps"].values())
