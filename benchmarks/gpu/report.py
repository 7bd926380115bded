"""The results of the acceptance run: one file that is whole after each step."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import environment, machine
from models import nvml
from registry.storage.files import write_text


class OtherRun(ValueError):
    """A results file that this run cannot go on with."""


class Report:
    """Hardware, versions and commands, and what each step found."""

    def __init__(
        self,
        file: Path,
        device: str,
        wake_seconds: float = 2.0,
        *,
        resume: bool = False,
        recipe: Mapping[str, object] | None = None,
    ) -> None:
        """Begin a results file, or go on with one.

        Args:
            wake_seconds: for which the price of a wake-up is measured.
            resume: keep what the file has from an earlier run, if there was one. Raises OtherRun when that was of
                another commit, on another card or with other values of the recipe.
            recipe: values of the recipe that were given, by their keys.
        """
        self._file, self._is_written = file, True
        gpu: dict[str, object] = {}
        if device != "cpu":
            result = nvml.gpu(device)
            gpu = {"gpu": result.name, "gpu_bytes": result.total, "driver": nvml.driver()}
        if recipe:
            gpu["recipe"] = dict(recipe)
        run = " ".join(["python", "-m", "benchmarks.gpu.acceptance", *sys.argv[1:]])
        self._held: dict[str, Any] = {
            "schema": 1,
            "environment": {**environment.record(), **gpu, "command": run, **machine.record(device, wake_seconds)},
            "servers": {},
            "steps": {},
            "finished": [],
        }
        if resume and file.exists():
            self._go_on_with(json.loads(file.read_text()))
        elif file.exists():
            earlier = file.with_suffix(".earlier.json")
            file.replace(earlier)
            print(f"without --resume a new results file begins; the one before is {earlier}", flush=True)
        self._write()

    def _go_on_with(self, earlier: dict[str, Any]) -> None:
        now, then = self._held["environment"], earlier["environment"]
        for key in ("commit", "gpu", "recipe"):
            if now.get(key) != then.get(key):
                raise OtherRun(f"{self._file} has results of {key} {then.get(key)}, and this is {now.get(key)}: name "
                               "another file with --results, or leave out --resume")  # fmt: skip
        self._held = {"finished": [], **earlier}
        self._held.setdefault("resumed", []).append({key: now[key] for key in ("time", "command")})

    @property
    def environment(self) -> Mapping[str, Any]:
        """Hardware, versions, commit and time."""
        result: Mapping[str, Any] = self._held["environment"]
        return result

    @property
    def steps(self) -> Mapping[str, Mapping[str, Any]]:
        """What each step found."""
        result: Mapping[str, Mapping[str, Any]] = self._held["steps"]
        return result

    @property
    def folder(self) -> Path:
        """Where the results are, and the files that `keep` copied."""
        return self._file.parent

    def server(self, name: str, command: Sequence[str]) -> None:
        """The start of a server."""
        self._held["servers"][name] = " ".join(command)

    def add(self, step: str, ok: bool, **figures: Any) -> None:
        self._held["steps"][step] = {"ok": ok, **figures}
        self._write()
        text = json.dumps(figures)
        print(f"{'ok   ' if ok else 'WRONG'} {step}: {text[:300] if self._is_written else text}", flush=True)

    def leave_out(self, part: str, why: str) -> None:
        """A part, or a piece of one, that was not measured."""
        self._held.setdefault("left_out", {})[part] = why
        self._write()
        print(f"left out {part}: {why}", flush=True)

    def begin(self, part: str) -> None:
        """Forget that an earlier run left the part, or pieces of it, out, or ended it early."""
        self._held["steps"].pop(f"{part} ended early", None)
        for piece in self._left_out_of(part):
            del self._held["left_out"][piece]

    def finish(self, part: str) -> None:
        """Note that a part came to its end without leaving pieces out: a run that resumes need not repeat it."""
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
        """Write once more, as the disk may have been full before."""
        self._write()

    def _write(self) -> None:
        """Put the file in its place whole: a run that is killed meanwhile leaves the one before."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self._file, json.dumps(self._held, indent=1, ensure_ascii=False) + "\n")
            self._is_written = True
        except OSError as fault:
            self._is_written = False
            print(f"{self._file} cannot be written: {fault}", file=sys.stderr, flush=True)

    @property
    def ok(self) -> bool:
        """Whether all steps are right and the file has them."""
        return self._is_written and all(step["ok"] for step in self._held["steps"].values())
