"""Trains starter-speech: ``python -m starter_training.speech.train --minutes 7.5 --out DIR --device auto --workers
14``.

Speech synthesis, training and scoring run side by side. The first part of the time uses short windows, the rest
the full 30 s; the learning rate falls to almost nothing by the end. See ``--help``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from registry.files.context import native_bfloat16
from starter_training.speech import storage, testing, tokens
from starter_training.speech.factory import LONG, Factory
from starter_training.speech.mixing import Mixer
from starter_training.speech.network import Trainee
from starter_training.speech.optimizer import Optimizer

_WARM_STEPS = 120


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train starter-speech from espeak-ng speech.")
    parser.add_argument("--minutes", type=float, default=7.5, help="wall-clock time until the last training step")
    parser.add_argument("--out", type=Path, required=True, help="folder for hf/, train.json and resume.pt.*")
    parser.add_argument("--device", default="auto", help="auto, cuda or cpu")
    parser.add_argument("--workers", type=int, default=14, help="speech synthesis processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="folder with resume.pt.* of an earlier run (use a new seed)")
    parser.add_argument("--hours", type=float, default=60.0, help="hours of audio that fit on the device")
    parser.add_argument("--speech-seconds", type=float, default=170.0, help="how long speech is synthesised")
    parser.add_argument("--short", type=float, default=0.5, help="share of the time with short windows")
    parser.add_argument(
        "--budget",
        type=int,
        nargs=2,
        default=(240_000, 384_000),
        help="mel frames per batch: short windows, long ones",
    )
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--tests", type=int, default=240, help="held-out utterances per set")
    return parser.parse_args()


class _Run:
    """A training run. All times count from the start of the process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.began = options, time.monotonic()
        tokens.ids()
        # The processes are forked before the first use of the accelerator, as CUDA does not survive a fork.
        tests = {"sentences": options.tests, "voices": options.tests}
        self.factory = Factory(options.workers, options.seed, options.speech_seconds, options.budget[0], tests)
        name = options.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(name)
        torch.manual_seed(options.seed)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        self.model = Trainee()
        self.steps = storage.load_state(self.model, options.resume) if options.resume else 0
        self.model.to(self.device).train()
        self.optimizer = Optimizer(self.model, fused=self.device.type == "cuda")
        self.mixer = Mixer(self.device, options.hours, options.seed)
        self.damping = 1.0
        self.best: dict[str, torch.Tensor] | None = None
        self.own_steps = 0

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def log(self, text: str) -> None:
        print(f"[{self.elapsed():6.1f}s] {text}", flush=True)

    def rate(self, done: float) -> float:
        """Return the learning rate at the share ``done`` of the time: warm-up, constant to 0.35, then down to 2 %."""
        warm = min(1.0, (self.own_steps + 1) / _WARM_STEPS)
        fall = 1.0 if done < 0.35 else 0.02 + 0.98 * (1 - done) / 0.65
        return float(self.options.rate * self.damping * warm * fall)

    def train(self) -> None:
        """Train until the time is up."""
        while self.mixer.used < 16000 * 120:
            self.factory.collect(self.mixer, block_seconds=1.0, most=1)
            if self.elapsed() > 120:
                raise RuntimeError("too little speech arrived in two minutes: see the errors of the speakers above")
        self.log(f"first audio: {self.mixer.used / 16000:.0f} s")
        total = self.options.minutes * 60
        parts: torch.Tensor | None = None
        is_long, tested, logged = False, time.monotonic(), time.monotonic()
        while (now := self.elapsed()) < total:
            done = now / total
            if not is_long and done >= self.options.short:
                is_long = True
                self.factory.ask(LONG, self.options.budget[1])
                self.log("windows of 30 s from here on")
            self.factory.collect(self.mixer)
            latest = self.step(done)
            parts = latest if parts is None else parts.lerp(latest, 0.05)
            if time.monotonic() - logged > 5:
                logged = time.monotonic()
                self._report(parts, done, is_long)
            if time.monotonic() - tested > (75 if self.device.type == "cuda" else 900) and total - now > 40:
                tested = time.monotonic()
                self.log(f"scores {json.dumps(testing.scores(self.model, self.factory.evaluations, self.device, 80))}")

    def step(self, done: float) -> torch.Tensor:
        """Update the model; returns the loss parts [words, times, phonemes, guide]."""
        batch = self.mixer.batch(self.factory.plan())
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda" or native_bfloat16()):
            loss, parts = self.model.loss(batch, 1.0 - 0.8 * done, 0.3 - 0.2 * done)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(self.rate(done))
        self.steps += 1
        self.own_steps += 1
        return parts

    def _report(self, parts: torch.Tensor, done: float, is_long: bool) -> None:
        words, times, phonemes, guide = parts.tolist()
        if not math.isfinite(words):
            if self.best is None:
                raise RuntimeError("the loss is not finite from the start")
            self.model.load_state_dict(self.best)
            self.optimizer = Optimizer(self.model, fused=self.device.type == "cuda")
            self.damping *= 0.5
            parts.zero_()
            self.log("the loss is not finite: back to the last good weights, half the rate")
            return
        self.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.log(
            f"step {self.steps} {'long' if is_long else 'short'} words {words:.3f} times {times:.3f} phonemes "
            f"{phonemes:.3f} guide {guide:.3f} rate {self.rate(done):.2e} audio {self.mixer.used / 57.6e6:.1f} h"
        )

    def finish(self) -> None:
        """Save the model, score it, and write the record."""
        out: Path = self.options.out
        storage.save_model(self.model, out / "hf")
        storage.save_state(self.model, self.steps, out)
        trained = self.elapsed()
        record: dict[str, Any] = {
            "seconds": round(trained, 1),
            "minutes": self.options.minutes,
            "steps": self.steps,
            "seed": self.options.seed,
            "audio_hours": round(self.mixer.used / 57.6e6, 2),
            "parameters": sum(parameter.numel() for parameter in self.model.whisper.parameters()),
            "vocabulary": tokens.ids().size,
            "resumed": self.options.resume is not None,
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else platform.processor(),
            "cpu_cores": os.cpu_count(),
            "versions": {
                "python": platform.python_version(), "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "scores": testing.scores(self.model, self.factory.evaluations, self.device, self.options.tests),
        }  # fmt: skip
        (out / "train.json").write_text(json.dumps(record, indent=2) + "\n")
        self.log(f"FINAL {json.dumps(record['scores'])} -> {out}")


def main() -> None:
    """Run the command line."""
    run = _Run(_arguments())
    try:
        run.train()
        run.finish()
    finally:
        run.factory.close()


if __name__ == "__main__":
    main()
