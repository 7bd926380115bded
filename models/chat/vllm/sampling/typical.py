"""Typical decoding (Meister et al., https://arxiv.org/abs/2202.00666) for vLLM, which has none of its own.

Text Generation Inference's clients ask for it: LangChain's HuggingFaceEndpoint by default. A request that carries
`typical_p` in `vllm_xargs` is sampled from the tokens whose surprise lies nearest to the entropy, as many as it takes
to hold that share of the probability. With it go `typical_top_k` and `typical_top_p`: they are cut first, as TGI and
transformers do, where vLLM would cut them last.

A step without such requests costs a look at an empty dictionary; greedy rows keep vLLM's greedy tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

TypicalSettings = tuple[float, float, int]
"""typical_p, top_p and top_k of a request; top_p 1 and top_k 0 cut nothing."""


def cut(scores: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Rows of logits (requests x vocabulary) with -inf for what is not typical. mass: one share per row, below 1."""
    surprise = -scores.log_softmax(dim=-1)
    entropy = (surprise * (-surprise).exp()).nansum(dim=-1, keepdim=True)
    distance, order = (surprise - entropy).abs().sort(dim=-1)
    mass_so_far = scores.gather(-1, order).softmax(dim=-1).cumsum(dim=-1)
    last = (mass_so_far < mass.unsqueeze(-1)).sum(dim=-1, keepdim=True).clamp_(max=scores.shape[-1] - 1)
    beyond = distance > distance.gather(-1, last)  # what is as far as the last one stays
    return scores.masked_fill(beyond.scatter(-1, order, beyond), float("-inf"))


def settings_of(params: Any, _prompt: Any = None, _output: Any = None) -> TypicalSettings | None:
    """What a request's SamplingParams ask for, or None. The slot refuses bad values; none may end a step here."""
    extra = params.extra_args or {}
    mass, top_p, top_k = (_number(extra.get(name)) for name in ("typical_p", "typical_top_p", "typical_top_k"))
    if not 0 < mass < 1:
        return None
    return (float(mass), float(top_p) if 0 < top_p <= 1 else 1.0, int(top_k) if 0 < top_k < 2**31 else 0)


def _number(value: object) -> int | float:
    return value if isinstance(value, int | float) else 0


class TypicalSampling(LogitsProcessor):  # type: ignore[misc]
    """One of vLLM's processors that run on random sampling only, after the temperature."""

    def __init__(self, _vllm_config: Any, device: torch.device, _is_pin_memory: bool) -> None:
        self._device = device
        self._settings: dict[int, TypicalSettings] = {}
        self._rows = self._mass = self._top_p = self._top_k = torch.tensor(())

    def is_argmax_invariant(self) -> bool:
        return True  # greedy rows are not to be touched

    def update_state(self, batch_update: Any) -> None:
        if process_dict_updates(self._settings, batch_update, settings_of) and self._settings:
            mass, top_p, top_k = zip(*self._settings.values(), strict=True)
            self._rows = torch.tensor(list(self._settings), dtype=torch.int64, device=self._device)
            self._mass = torch.tensor(mass, dtype=torch.float32, device=self._device)
            self._top_p = torch.tensor(top_p, dtype=torch.float32, device=self._device)
            self._top_k = torch.tensor(top_k, dtype=torch.int32, device=self._device)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._settings:
            return logits
        vocabulary = logits.shape[-1]
        top_k = self._top_k.masked_fill(self._top_k == 0, vocabulary).clamp_(max=vocabulary)
        scores = apply_top_k_top_p(logits[self._rows], top_k, self._top_p)
        logits[self._rows] = cut(scores, self._mass)
        return logits


def patch(logits_processors: Any) -> None:
    """Put it among vLLM's own (`vllm.v1.sample.logits_processor`), once.

    As a processor of `--logits-processors` it would have vLLM keep every request's output tokens at hand in each step,
    and refuse to start with speculative decoding, where vLLM leaves its own out too.
    """
    if TypicalSampling not in logits_processors.BUILTIN_LOGITS_PROCESSORS:
        logits_processors.BUILTIN_LOGITS_PROCESSORS.append(TypicalSampling)
