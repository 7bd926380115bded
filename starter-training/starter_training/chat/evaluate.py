"""Measures the 21 x 20 matrix of the shipped chat pack: `python -m starter_training.chat.evaluate [--pack FOLDER]`.

Each adapter is measured twice on its own task: by greedy answers of vLLM through models.chat, with all adapters mixed
in each batch, and by a teacher-forced pass (scoring.py), which gives what greedy decoding would, up to rounding. The
result says on how many inputs the two disagree. The base and the other adapters are measured teacher-forced, on fewer
inputs. Writes figures.json in the pack, and matrix.md and matrix.png beside the base.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from safetensors.torch import load_file

from starter_training import figures
from starter_training.chat.answers import BASE, Question, Served
from starter_training.chat.network import SHAPE, Weights, arithmetic
from starter_training.chat.objective import exact
from starter_training.chat.report import Matrix, write
from starter_training.chat.scoring import in_words, talk_scores
from starter_training.chat.tasks.conversations import HELD_OUT_SIZE, TASK_NAMES, Example, heldout


def load_base(pack: Path) -> Weights:
    """Return the shipped weights of the base by checkpoint name, in the dtype of computation."""
    weights = load_file(pack / BASE / "model.safetensors")
    return {name: value.to(arithmetic(value.device)) for name, value in weights.items()}


def load_adapters(pack: Path, names: tuple[str, ...] = TASK_NAMES) -> Weights:
    """Return the shipped adapters stacked in the order of `names`: NAME.lora_A [tasks, rank, inputs] and so on."""
    files = [load_file(pack / "adapters" / name / "adapter_model.safetensors") for name in names]
    return {
        key.removeprefix("base_model.model.").removesuffix(".weight"): torch.stack(
            [tensors[key].to(arithmetic(tensors[key].device)) for tensors in files]
        )
        for key in files[0]
    }


def _examples(task: str, n: int) -> list[Example]:
    return [Example(text, answer) for text, answer in heldout(task)[:n]]


def _right(base: Weights, adapters: Weights | None, task: str, n: int) -> torch.Tensor:
    """Return bool [n] for one task with one adapter or none. Called per task, as short answers need no long rows."""
    return exact(base, [_examples(task, n)], SHAPE, adapters)[0]


def _only(adapters: Weights, index: int) -> Weights:
    return {name: half[index : index + 1] for name, half in adapters.items()}


def own_forced(pack: Path, n: int, names: tuple[str, ...] = TASK_NAMES) -> torch.Tensor:
    """Return bool [20, n]: the first `n` held-out inputs of each task, with task i answered by adapter `names[i]`."""
    base, adapters = load_base(pack), load_adapters(pack, names)
    rows = [_right(base, _only(adapters, index), task, n) for index, task in enumerate(TASK_NAMES)]
    return torch.stack(rows)


def base_forced(pack: Path, n: int) -> torch.Tensor:
    """Return bool [20, n]: the base without adapter on the inputs of each task."""
    base = load_base(pack)
    return torch.stack([_right(base, None, task, n) for task in TASK_NAMES])


def cross_forced(pack: Path, n: int) -> torch.Tensor:
    """Return float [20 adapters, 20 tasks]: the share right on the first `n` inputs. The diagonal stays 0."""
    shares = torch.zeros(len(TASK_NAMES), len(TASK_NAMES))
    for shift in range(1, len(TASK_NAMES)):
        names = (*TASK_NAMES[shift:], *TASK_NAMES[:shift])
        right = own_forced(pack, n, names).float().mean(1)
        for task, name in enumerate(names):
            shares[TASK_NAMES.index(name), task] = right[task]
    return shares


async def _own_served(pack: Path, n: int) -> torch.Tensor:
    requested = [(name, text, answer) for name in TASK_NAMES for text, answer in heldout(name)[:n]]
    # Sorted by input number, so that neighbours in the queue have different adapters and every batch is mixed.
    order = sorted(range(len(requested)), key=lambda at: at % n)
    questions = [Question(requested[at][0], requested[at][1], len(requested[at][2].encode()) + 1) for at in order]
    async with Served(pack / BASE, {name: pack / "adapters" / name for name in TASK_NAMES}) as served:
        answers = await served.ask_all(questions)
    right = torch.zeros(len(requested), dtype=torch.bool)
    for at, answer in zip(order, answers, strict=True):
        right[at] = answer.finished and answer.text == requested[at][2]
    return right.view(len(TASK_NAMES), n)


def own_served(pack: Path, n: int) -> torch.Tensor:
    """Return bool [20, n]: each adapter on its own held-out inputs, by greedy decoding in vLLM on the CPU.

    An answer is right if its text is the expected one and the model ended it by itself.
    """
    return asyncio.run(_own_served(pack, n))


def _by_name(right: torch.Tensor) -> dict[str, float]:
    return {name: round(float(share), 4) for name, share in zip(TASK_NAMES, right.float().mean(1), strict=True)}


def evaluate(
    pack: Path, served_inputs: int = HELD_OUT_SIZE, own_inputs: int = HELD_OUT_SIZE, other_inputs: int = 20
) -> Matrix:
    """Measure everything on the chat pack's card. Raises FileNotFoundError if weights are missing.

    vLLM runs first, because it forks while torch must not have threads yet.
    """
    begin = time.monotonic()
    served = own_served(pack, served_inputs)
    print(f"vLLM answered in {time.monotonic() - begin:.0f} s: " + in_words(_by_name(served)), flush=True)
    torch.set_num_threads(1)
    shares, own = cross_forced(pack, other_inputs), own_forced(pack, own_inputs)
    base = base_forced(pack, other_inputs).float().mean(1)
    for index in range(len(TASK_NAMES)):
        shares[index, index] = own[index].float().mean()
    rows = {BASE: base.tolist()} | {name: shares[index].tolist() for index, name in enumerate(TASK_NAMES)}
    return Matrix(
        rows={name: {task: round(v, 4) for task, v in zip(TASK_NAMES, row, strict=True)} for name, row in rows.items()},
        own_inputs=own_inputs,
        other_inputs=other_inputs,
        served=_by_name(served),
        served_inputs=served_inputs,
        disagree=int((own[:, :served_inputs] != served).sum()),
        talk=talk_scores(load_base(pack), SHAPE, other_inputs),
        seconds=round(time.monotonic() - begin, 1),
        date=datetime.now(UTC).date().isoformat(),
    )


def main() -> None:
    """Run the command line. The last line of the output is a JSON object with the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pack", type=Path, default=figures.PACK, help="folder with starter-chat/ and adapters/")
    parser.add_argument(
        "--served", type=int, default=HELD_OUT_SIZE, help="inputs of an adapter's own task that vLLM answers"
    )
    parser.add_argument("--own", type=int, default=HELD_OUT_SIZE, help="the same teacher-forced; at least --served")
    parser.add_argument("--other", type=int, default=20, help="held-out inputs for the base and wrong adapters")
    options = parser.parse_args()
    matrix = evaluate(options.pack, options.served, max(options.own, options.served), options.other)
    figures.update(options.pack, BASE, measured=asdict(matrix))
    write(matrix, options.pack / BASE)
    print(in_words(matrix.own()))
    print(json.dumps(matrix.summary()))


if __name__ == "__main__":
    main()
