"""The results of the acceptance run: one file that is whole after each step."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import machine
from benchmarks.report import environment
from models import nvml


class Report:
    """Hardware, versions and commands, and what each step found."""

    def __init__(self, file: Path, device: str, wake_seconds: float = 2.0) -> None:
        """wake_seconds: for which the price of a wake-up is measured."""
        self._file = file
        gpu: dict[str, object] = {}
        if device != "cpu":
            result = nvml.gpu(device)
            gpu = {"gpu": result.name, "gpu_bytes": result.total, "driver": nvml.driver()}
        run = " ".join(["python", "-m", "benchmarks.gpu.acceptance", *sys.argv[1:]])
        self._held: dict[str, Any] = {
            "schema": 1,
            "environment": {**environment.record(), **gpu, "command": run, **machine.record(device, wake_seconds)},
            "servers": {},
            "steps": {},
        }

    @property
    def environment(self) -> Mapping[str, Any]:
        """Hardware, versions, commit and time."""
        result: Mapping[str, Any] = self._held["environment"]
        return result

    def server(self, name: str, command: Sequence[str]) -> None:
        """The start of a server."""
        self._held["servers"][name] = " ".join(command)

    def add(self, step: str, ok: bool, **figures: Any) -> None:
        self._held["steps"][step] = {"ok": ok, **figures}
        self._write()
        print(f"{'ok   ' if ok else 'WRONG'} {step}: {json.dumps(figures)[:300]}", flush=True)

    def leave_out(self, part: str, why: str) -> None:
        """A part, or a piece of one, that was not measured."""
        self._held.setdefault("left_out", {})[part] = why
        self._write()
        print(f"left out {part}: {why}", flush=True)

    def keep(self, files: Iterable[Path]) -> None:
        """Copy files beside the results."""
        for file in files:
            shutil.copy(file, self._file.parent)

    def _write(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._held, indent=1, ensure_ascii=False) + "\n")

    @property
    def ok(self) -> bool:
        return all(step["ok"] for step in self._held["steps"].values())
