"""Trains the base: all tasks behind reserved tokens, the questions, small talk and refusals."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from starter_training.chat.batches import base_batch, stream
from starter_training.chat.export import BASE_NAME, load_resume, save_base, save_resume
from starter_training.chat.network import EMBED, SHAPE, Weights, new_weights, rotary_table
from starter_training.chat.objective import Inputs, compiled, make_loss
from starter_training.chat.optimizers import Muon, ramp
from starter_training.chat.run_state import Run
from starter_training.chat.scoring import in_words, rounded, skill_scores, talk_scores

MUON_RATE, ADAM_RATE = 0.02, 3e-3
RESUME = "resume-base.safetensors"


def train_base(run: Run, minutes: float, resume: Path | None) -> Weights:
    """Trains for `minutes` of wall clock, compiling included, and returns the float32 weights on the device.

    With `resume` it goes on from saved weights at half the learning rate. With 0 minutes it only loads them.
    """
    weights = load_resume(resume / RESUME, run.device) if resume else new_weights(SHAPE, run.seed, run.device)
    if minutes <= 0:
        return weights
    for value in weights.values():
        value.requires_grad_(True)
    muon = Muon([value for name, value in weights.items() if value.ndim == 2 and name != EMBED])
    rest = [value for name, value in weights.items() if value.ndim == 1 or name == EMBED]
    adam = torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0, fused=run.device.type == "cuda")
    table, loss_of = rotary_table(SHAPE, run.device, run.arithmetic), make_loss(SHAPE, run.arithmetic)
    begin, total = time.monotonic(), minutes * 60
    steps, reported, scored, loss = 0, begin, begin, torch.zeros(())
    seed = f"base {run.seed} {'again' if resume else ''}"
    with stream(base_batch, seed, run.rows, run.length, run.workers) as take:
        if run.compile:
            loss_of = compiled(loss_of, weights, None, Inputs(take(), table), run.log)
        waited = 0.0
        while (progress := (time.monotonic() - begin) / total) < 1:
            before = time.monotonic()
            inputs = Inputs(take(), table)
            waited += time.monotonic() - before
            factor = ramp(progress, steps, warm_up=100, hold=0.3) * (0.5 if resume else 1.0)
            loss = loss_of(weights, None, inputs.ids, inputs.mask, inputs.rotary, inputs.weights)
            loss.backward()  # type: ignore[no-untyped-call]
            muon.step(MUON_RATE * factor)
            adam.param_groups[0]["lr"] = ADAM_RATE * factor
            adam.step()
            adam.zero_grad()
            steps += 1
            now = time.monotonic()
            if steps in (1, 20) or now - reported > 5:
                rate = steps * run.rows * run.length / (now - begin)
                run.log(f"base step {steps} {progress:.0%} loss {loss.item():.4f} {rate / 1000:.0f}k tokens/s"
                        f" {steps / (now - begin):.1f} steps/s, waited for data {waited:.1f} s")  # fmt: skip
                reported = now
            if now - scored > run.score_every:
                run.log("base skills " + in_words(skill_scores(rounded(weights, run.dtype, run.arithmetic), SHAPE, 50)))
                save_resume(weights, run.out / RESUME)
                scored = reported = time.monotonic()
    for value in weights.values():
        value.requires_grad_(False)
    seconds = time.monotonic() - begin
    save_resume(weights, run.out / RESUME)
    save_base(weights, run.out / BASE_NAME)
    final = rounded(weights, run.dtype, run.arithmetic)
    skills, talk = skill_scores(final, SHAPE, 200), talk_scores(final, SHAPE, 40)
    run.record["base"] = {"seconds": round(seconds, 1), "steps": steps, "tokens": steps * run.rows * run.length,
                          "loss": round(loss.item(), 4), "skills": skills, "talk": talk}  # fmt: skip
    run.log(f"base done: {steps} steps in {seconds:.0f} s; skills " + in_words(skills))
    run.log("base talk " + in_words(talk))
    run.save()
    return weights
