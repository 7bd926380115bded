"""Trains all twenty adapters, or some, at once on the frozen base: each batch has rows of every task."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import torch

from starter_training.chat.batches import adapter_batch, stream
from starter_training.chat.export import load_resume, save_adapters, save_resume
from starter_training.chat.network import SHAPE, Weights, new_adapters, rotary_table
from starter_training.chat.objective import Inputs, compiled, make_loss
from starter_training.chat.optimizers import clip_by_group, ramp
from starter_training.chat.run_state import Run
from starter_training.chat.scoring import in_words, own_scores, rounded, wrong_scores
from starter_training.chat.tasks.conversations import TASK_NAMES

RESUME = "resume-adapters.safetensors"


def train_adapters(run: Run, weights: Weights, minutes: float, resume: Path | None) -> None:
    """Train the adapters of `run.tasks` for `minutes` of wall clock, then write all adapters and the trained ones'
    scores.

    Args:
        weights: the base, which is rounded to bfloat16 first, so that the adapters fit the base that ships.
        resume: continue with the adapters saved here, if any. Those of other tasks stay unchanged.
    """
    base = rounded(weights, run.dtype, run.arithmetic)
    if resume and (resume / RESUME).exists():
        everything = load_resume(resume / RESUME, run.device)
    else:
        everything = new_adapters(SHAPE, len(TASK_NAMES), run.seed, run.device)
    places = [TASK_NAMES.index(name) for name in run.tasks]
    adapters = {name: value[places].clone().requires_grad_(True) for name, value in everything.items()}
    parameters = list(adapters.values())

    def merged() -> Weights:
        for name, value in adapters.items():
            everything[name][places] = value.detach()
        return everything

    adam = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.0, fused=run.device.type == "cuda")
    table, loss_of = rotary_table(SHAPE, run.device, run.arithmetic), make_loss(SHAPE, run.arithmetic)
    rows = max(1, run.rows // len(run.tasks))
    tokens = rows * len(run.tasks) * run.length
    begin, total = time.monotonic(), minutes * 60
    steps, reported, scored, loss = 0, begin, begin, torch.zeros(())
    seed = f"adapters {run.seed} {'again' if resume else ''}"
    with stream(partial(adapter_batch, tasks=run.tasks), seed, rows, run.length, run.workers) as take:
        if run.compile:
            loss_of = compiled(loss_of, base, adapters, Inputs(take(), table), run.log)
        while (progress := (time.monotonic() - begin) / total) < 1:
            inputs = Inputs(take(), table)
            loss = loss_of(base, adapters, inputs.ids, inputs.mask, inputs.rotary, inputs.weights)
            loss.backward()  # type: ignore[no-untyped-call]
            clip_by_group(parameters, 1.0)
            adam.param_groups[0]["lr"] = run.adapter_rate * ramp(progress, steps, warm_up=50, hold=0.2)
            adam.step()
            adam.zero_grad()
            steps += 1
            now = time.monotonic()
            if steps in (1, 20) or now - reported > 5:
                run.log(f"adapters step {steps} {progress:.0%} mean loss {loss.item() / len(run.tasks):.4f}"
                        f" {steps * tokens / (now - begin) / 1000:.1f}k tokens/s"
                        f" {steps / (now - begin):.1f} steps/s")  # fmt: skip
                reported = now
            if now - scored > run.score_every:
                now_right = own_scores(base, rounded(adapters, run.dtype, run.arithmetic), SHAPE, 50, run.tasks)
                run.log("adapters " + in_words(now_right))
                save_resume(merged(), run.out / RESUME)
                scored = reported = time.monotonic()
    seconds = time.monotonic() - begin
    save_resume(merged(), run.out / RESUME)
    save_adapters(merged(), run.out / "adapters")
    own = own_scores(base, rounded(adapters, run.dtype, run.arithmetic), SHAPE, 200, run.tasks)
    record: dict[str, object] = {
        "seconds": round(seconds, 1), "steps": steps, "tokens": steps * tokens, "own": own,
    }  # fmt: skip
    run.log(f"adapters done: {steps} steps in {seconds:.0f} s; own " + in_words(own))
    if run.tasks == TASK_NAMES:
        wrong = wrong_scores(base, rounded(adapters, run.dtype, run.arithmetic), SHAPE, 40)
        record["wrong"] = wrong
        run.log(f"wrong adapters, mean {sum(wrong.values()) / len(wrong):.4f}: " + in_words(wrong))
    run.log(f"under 0.95: {sorted(name for name, value in own.items() if value < 0.95) or 'none'}")
    run.record["adapters"] = record
    run.save()
