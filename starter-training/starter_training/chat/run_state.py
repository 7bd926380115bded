"""State of both training phases: device, dtype, clock, log, and the record that becomes train.json."""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from starter_training.chat.network import arithmetic
from starter_training.chat.tasks.conversations import TASK_NAMES

ADAPTER_RATE = 3e-3


@dataclass
class Run:
    """A run of train.py. `save` writes `record` to `out`/train.json.

    Attributes:
        tasks: the adapters to train, with Adam at `adapter_rate`.
        dtype: dtype of the written weights.
    """

    out: Path
    device: torch.device
    rows: int
    length: int
    workers: int
    seed: int
    compile: bool
    tasks: tuple[str, ...] = TASK_NAMES
    adapter_rate: float = ADAPTER_RATE
    dtype: torch.dtype = torch.bfloat16
    start: float = field(default_factory=time.monotonic)
    record: dict[str, object] = field(default_factory=dict)

    def log(self, text: str) -> None:
        """Print a line with the seconds since the start, unbuffered."""
        print(f"[{time.monotonic() - self.start:6.1f}s] {text}", flush=True)

    @property
    def arithmetic(self) -> torch.dtype:
        """The dtype of computation."""
        return arithmetic(self.device)

    @property
    def score_every(self) -> float:
        """Seconds between scorings during training, which take a second on a GPU and half a minute on a CPU core."""
        return 30.0 if self.device.type == "cuda" else 600.0

    def save(self) -> None:
        """Write train.json."""
        (self.out / "train.json").write_text(json.dumps(self.record, indent=1))

    def describe(self) -> None:
        """Add hardware and versions to the record."""
        card = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "none"
        self.record |= {
            "seed": self.seed, "rows": self.rows, "length": self.length, "workers": self.workers, "gpu": card,
            "cpu": platform.processor() or platform.machine(), "python": sys.version.split()[0],
            "torch": torch.__version__,
        }  # fmt: skip
        self.log(f"device {self.device} ({card}), torch {torch.__version__}, {self.workers} data workers")
