"""What transformers and peft make of the same weights: the reference for greedy answers.

Ties: an answer is checked token by token with the reference fed the engine's own tokens. Each token must be the
reference's best one, or lie within `TIE` of it: there two correct programs may differ by the order of their sums.
"""

import json
from pathlib import Path
from typing import Any

import torch

from models.chat.engine import VllmEngine
from models.messages import AdapterRef, Chunk, HttpCall

PROMPT = "a fox and a dog"
TIE = 2e-3
"""Logits; the random base's best logit leads by 0.1 to 3 where nothing is wrong."""


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
        """How far each token of `answer` lies below the reference's best one."""
        logits = self._logits(adapter, prompt + answer)[len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
        gaps: list[float] = (logits.max(dim=1).values - chosen).tolist()
        return gaps

    def agrees(self, adapter: AdapterRef | None, prompt: list[int], answer: list[int]) -> bool:
        return bool(answer) and max(self.gaps(adapter, prompt, answer)) <= TIE


def _name(adapter: AdapterRef) -> str:
    return adapter.digest.replace(":", "-")


def tokens_of(choice: dict[str, Any]) -> list[int]:
    """Token ids of a choice that was asked for with `return_token_ids`."""
    return list(choice["token_ids"])


async def greedy(engine: VllmEngine, served: AdapterRef | None) -> tuple[list[int], list[int]]:
    """Tokens of a prompt and of its answer by the model `tiny`, or by an adapter of it that is in a place."""
    name = served.digest if served else "tiny"
    body = {"model": name, "prompt": PROMPT, "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    sent = json.dumps(body).encode()
    call = engine.call(HttpCall(path="/v1/completions", body=sent, served=name, display_name=name, adapter=served))
    reported: dict[str, Any] = json.loads(b"".join([event.data async for event in call if isinstance(event, Chunk)]))
    choice = reported["choices"][0]
    return choice["prompt_token_ids"], choice["token_ids"]
