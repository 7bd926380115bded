"""Trains the starter chat pack: the base, then the adapters, then a quick evaluation."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for starter-chat/, adapters/, train.json")
    parser.add_argument("--minutes-base", type=float, default=4.5, help="0: keep the base of --resume")
    parser.add_argument("--minutes-adapters", type=float, default=2.5, help="0: train only the base")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--resume", type=Path, help="folder with resume-*.safetensors to continue from")
    parser.add_argument("--rows", type=int, help="rows per batch (default 320 on a GPU, 20 on a CPU)")
    parser.add_argument("--length", type=int, default=256, help="tokens per row; longer conversations are left out")
    parser.add_argument("--workers", type=int, help="data processes (default: 12 on a GPU machine, 1 on a CPU)")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="auto", help="auto: on a GPU, if it works")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="train only these adapters and keep the others")
    parser.add_argument("--rate", type=float, help="peak learning rate of the adapters (default 0.003)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.resume is None and (options.tasks or options.minutes_base <= 0):
        parser.error("--tasks and --minutes-base 0 need --resume, which has the parts that are not trained")
    return options


def _tasks(named: list[str] | None) -> tuple[str, ...]:
    from starter_training.chat.tasks.conversations import TASK_NAMES

    if unknown := sorted(set(named or ()) - set(TASK_NAMES)):
        raise SystemExit(f"unknown tasks {unknown}; choose from {', '.join(TASK_NAMES)}")
    return tuple(name for name in TASK_NAMES if named is None or name in named)


def main() -> None:
    arguments = _arguments()
    # Heavy imports are here because the data processes also import this module and must start fast.
    import torch

    from starter_training.chat.run_state import ADAPTER_RATE, Run
    from starter_training.chat.train_adapters import train_adapters
    from starter_training.chat.train_base import train_base

    name = arguments.device if arguments.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    gpu = name == "cuda"
    if gpu:
        torch.backends.cuda.enable_cudnn_sdp(False)  # use the memory-efficient kernel, which supports the packed mask
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))
    some = min(12, (os.cpu_count() or 2) - 1) if gpu else 1
    run = Run(
        out=arguments.out,
        device=torch.device(name),
        rows=arguments.rows or (320 if gpu else 20),
        length=arguments.length,
        seed=arguments.seed,
        compile=arguments.compile == "on" or (gpu and arguments.compile == "auto"),
        workers=some if arguments.workers is None else arguments.workers,
        tasks=_tasks(arguments.tasks),
        adapter_rate=arguments.rate or ADAPTER_RATE,
    )
    run.out.mkdir(parents=True, exist_ok=True)
    run.describe()

    weights = train_base(run, arguments.minutes_base, arguments.resume)
    if arguments.minutes_adapters > 0:
        train_adapters(run, weights, arguments.minutes_adapters, arguments.resume)
    run.log(f"all done: {run.out}")


if __name__ == "__main__":
    main()
