"""The reference for greedy answers: transformers and peft with the same weights.

An answer is checked token by token, and the reference gets the engine's own tokens as its input. Each token must be the
reference's best one or within `TIE` of it, where two correct programs may differ by the order of their sums.
"""

import json
from pathlib import Path
from typing import Any

import torch

from models.chat.engine import VllmEngine
from models.messages import AdapterRef, Chunk, HttpCall

PROMPT = "a fox and a dog"
TIE = 2e-3
"""Difference of logits. The random base's best logit normally leads by 0.1 to 3."""


class Oracle:
    def __init__(self, base: Path, adapters: list[AdapterRef]) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(base)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self._model = PeftModel.from_pretrained(model, adapters[0].path, adapter_name=_name(adapters[0]))
        for adapter in adapters[1:]:
            self._model.load_adapter(adapter.path, adapter_name=_name(adapter))
        self._model.eval()

    def _logits(self, adapter: AdapterRef | None, tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            if adapter is None:
                with self._model.disable_adapter():
                    return self._model(torch.tensor([tokens])).logits[0]
            self._model.set_adapter(_name(adapter))
            return self._model(torch.tensor([tokens])).logits[0]

    def gaps(self, adapter: AdapterRef | None, prompt: list[int], answer: list[int]) -> list[float]:
        """Return how far each token of `answer` is below the reference's best one."""
        logits = self._logits(adapter, prompt + answer)[len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
        gaps: list[float] = (logits.max(dim=1).values - chosen).tolist()
        return gaps

    def agrees(self, adapter: AdapterRef | None, prompt: list[int], answer: list[int]) -> bool:
        return bool(answer) and max(self.gaps(adapter, prompt, answer)) <= TIE


def _name(adapter: AdapterRef) -> str:
    return adapter.digest.replace(":", "-")


def tokens_of(choice: dict[str, Any]) -> list[int]:
    """Return the token ids of a choice that was requested with `return_token_ids`."""
    return list(choice["token_ids"])


async def greedy(engine: VllmEngine, served: AdapterRef | None) -> tuple[list[int], list[int]]:
    """Return the tokens of a prompt and of the answer by the model `tiny`, or by its adapter in a place."""
    name = served.digest if served else "tiny"
    body = {"model": name, "prompt": PROMPT, "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    sent = json.dumps(body).encode()
    call = engine.call(HttpCall(path="/v1/completions", body=sent, served=name, display_name=name, adapter=served))
    reported: dict[str, Any] = json.loads(b"".join([event.data async for event in call if isinstance(event, Chunk)]))
    choice = reported["choices"][0]
    return choice["prompt_token_ids"], choice["token_ids"]
