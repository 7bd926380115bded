"""Rebuild the starter models from their scripts: `python -m starter_training [chat] [rerank] [speech] [all] [cards]`.

Each step trains a model, puts it into the pack, measures it on held-out inputs and writes its card. `cards` only
rewrites the cards from the pack's figures. Steps run in child processes, which free their memory at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from starter_training import figures

STEPS = ("chat", "rerank", "speech")
TIMES = """
times to reach the aims (the cards have the times of the shipped weights):
  chat     about 5 hours on one CPU core (6 measured over several runs on a busy machine), or about 10 minutes on a
           data-centre GPU (estimate)
  rerank   1 hour and 20 minutes on one CPU core (measured), or about 5 minutes on such a GPU (estimate)
  speech   about 2 hours on one CPU core (measured; with windows of 30 s more than 3, an estimate), or about 30 minutes
           on such a GPU (estimate)
the measurements afterwards take about 10 minutes in all on two cores.

needs: for speech espeak-ng (the package espeakng-loader, or Debian's libespeak-ng1); for rerank apt-get, which
downloads two Debian packages of text without installing them.
"""
MINUTES = {
    "cpu": {"chat": 240.0, "rerank": 60.0, "speech": 180.0},
    "cuda": {"chat": 10.0, "rerank": 5.0, "speech": 30.0},
}

ALSO_MISSED = (0, figures.MISSED)
"""Exit codes of measurements after which the model ships. If it misses its aim, its card says so; if it could not be
measured, it does not ship."""

# Small batches, because on a core the number of steps matters most.
RERANK_ON_CPU = (
    "--queries", 24, "--negatives", 7, "--passage-tokens", 112, "--layers", "0,1", "--rate", 6e-4,
)  # fmt: skip
SPEECH_ON_CPU = (
    "--workers", 1, "--speech-seconds", 1800, "--hours", 16, "--budget", 8000, 9000, "--rate", 1.3e-3,
)  # fmt: skip


def _python(module: str, *arguments: object, accept: tuple[int, ...] = (0,)) -> None:
    command = [sys.executable, "-m", f"starter_training.{module}", *map(str, arguments)]
    print("$ python " + " ".join(command[1:]), flush=True)
    status = subprocess.run(command).returncode
    if status not in accept:
        raise SystemExit(f"starter_training.{module} failed with exit code {status}")


def _chat(work: Path, pack: Path, minutes: float, device: str, train: bool) -> None:
    from starter_training.install import install_chat

    if train:
        # Two thirds for the base, because adapters only activate what the base has learnt behind its reserved tokens.
        times = ("--minutes-base", round(minutes * 0.65, 1), "--minutes-adapters", round(minutes * 0.35, 1))
        _python("chat.train", "--out", work, "--device", device, *times)
    install_chat(work, pack)
    _python("chat.evaluate", "--pack", pack)


def _rerank(work: Path, pack: Path, minutes: float, device: str, train: bool) -> None:
    from starter_training.install import install_rerank

    data = work.with_name("rerank-data")
    if train:
        _python("rerank.prepare", "--out", data)
        _python(
            "rerank.train", "--data", data, "--out", work, "--minutes", minutes, "--device", device,
            *(RERANK_ON_CPU if device == "cpu" else ()),
        )  # fmt: skip
    install_rerank(work, data, pack)
    _python("rerank.evaluate", "--pack", pack / "starter-rerank", "--figures", accept=ALSO_MISSED)


def _speech(work: Path, pack: Path, minutes: float, device: str, train: bool) -> None:
    from starter_training.install import install_speech

    if train:
        options = SPEECH_ON_CPU if device == "cpu" else ()
        _python("speech.train", "--out", work, "--minutes", minutes, "--device", device, *options)
    install_speech(work, pack)
    _python("speech.evaluate", pack / "starter-speech", "--figures", pack)
    _python(
        "speech.samples", pack / "samples", "--model", pack / "starter-speech", "--figures", pack, accept=ALSO_MISSED
    )


def _device(name: str) -> str:
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m starter_training", description=(__doc__ or "").split("\n")[0], epilog=TIMES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    default = "; ".join(
        f"on {device} " + ", ".join(f"{step} {minutes:g}" for step, minutes in steps.items())
        for device, steps in MINUTES.items()
    )
    parser.add_argument(
        "steps", nargs="*", default=["all"], metavar="STEP", help="chat, rerank, speech, all (default), cards"
    )
    parser.add_argument("--work", type=Path, default=Path(".starter"), help="folder for data and checkpoints")
    parser.add_argument("--pack", type=Path, default=figures.PACK, help="folder for the models")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--minutes", type=float, help=f"training minutes of each step (default: {default})")
    parser.add_argument("--no-train", action="store_true", help="use the models already trained in the work folder")
    options = parser.parse_args()
    if unknown := set(options.steps) - {*STEPS, "all", "cards"}:
        parser.error(f"unknown step {', '.join(sorted(unknown))}: use chat, rerank, speech, all or cards")
    return options


def main() -> None:
    options = _arguments()
    device = _device(options.device)
    for step, run in zip(STEPS, (_chat, _rerank, _speech), strict=True):
        if step in options.steps or "all" in options.steps:
            minutes = options.minutes or MINUTES[device][step]
            run(options.work / step, options.pack, minutes, device, not options.no_train)
    from starter_training.cards import write_cards

    for path in write_cards(options.pack):
        print(path)


if __name__ == "__main__":
    main()
