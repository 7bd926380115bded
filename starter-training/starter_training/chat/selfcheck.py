"""Checks that the training network equals transformers' Llama with peft's LoRA (run it with `python -m`)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import torch

from starter_training.chat.batches import unpacked
from starter_training.chat.export import save_adapter, save_base
from starter_training.chat.network import SHAPE, forward, new_adapters, new_weights, rotary_table
from starter_training.chat.objective import Inputs
from starter_training.chat.tasks.conversations import TASK_NAMES, Example, adapter_example


def check(tolerance: float = 2e-4) -> float:
    """Compare `forward` with transformers and peft in float32, for the base and for three adapters in one batch.

    Returns the largest difference of logits. Raises AssertionError if it is above `tolerance`.
    """
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    device, rng = torch.device("cpu"), Random(0)
    weights, adapters = new_weights(SHAPE, 5, device), new_adapters(SHAPE, 3, 5, device)
    for value in adapters.values():
        value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(6)) * 0.05)
    # The files are bfloat16, so round first to start both sides from equal numbers.
    weights = {name: value.bfloat16().float() for name, value in weights.items()}
    adapters = {name: value.bfloat16().float() for name, value in adapters.items()}
    groups = [[adapter_example(rng, TASK_NAMES[i]) for _ in range(2)] for i in range(3)]
    flat: list[Example] = [example for group in groups for example in group]
    batch = unpacked(flat)
    inputs = Inputs(batch, rotary_table(SHAPE, device, torch.float32))
    real = torch.from_numpy(batch.ids != 256)
    ours = forward(weights, inputs.ids, inputs.mask, inputs.rotary, SHAPE)
    ours_adapted = forward(weights, inputs.ids, inputs.mask, inputs.rotary, SHAPE, adapters)
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        save_base(weights, folder / "base")
        theirs = LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.float32).eval()
        worst = float((theirs(inputs.ids).logits - ours)[real].abs().max())
        for index in range(3):
            save_adapter(adapters, index, folder / str(index))
        model = PeftModel.from_pretrained(theirs, folder / "0", adapter_name="task0")
        for index in (1, 2):
            model.load_adapter(folder / str(index), adapter_name=f"task{index}")
        for index in range(3):
            model.set_adapter(f"task{index}")
            at = slice(2 * index, 2 * index + 2)
            difference = (model.eval()(inputs.ids[at]).logits - ours_adapted[at])[real[at]].abs().max()
            worst = max(worst, float(difference))
    assert worst < tolerance, f"the networks differ by {worst}"
    return worst


if __name__ == "__main__":
    print(f"largest difference of logits: {check():.2e}")
