"""Typical decoding for vLLM's second model runner, which runs on GPUs: `typical` in its documented interface.

vLLM's own cuts come after it, and so does the temperature: here the scores are looked at as they will be then.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from models.chat.vllm.sampling.typical import TypicalSettings, cut, settings_of


class TypicalSamplingV2(LogitsProcessor):  # type: ignore[misc]
    """A step without such requests costs a look at an empty dictionary; greedy ones are left alone."""

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self._device = req_states.device
        self._settings: dict[int, tuple[TypicalSettings, float]] = {}
        """Of each request's seat, with its temperature."""

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        settings = settings_of(sampling_params)
        self._settings.pop(req_idx, None)  # of who sat there before
        if settings is None or not sampling_params.temperature:
            return False
        self._settings[req_idx] = settings, float(sampling_params.temperature)
        return True

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        seats = [int(seat) for seat in ctx.idx_mapping_np] if self._settings else []
        active = [(row, *self._settings[seat]) for row, seat in enumerate(seats) if seat in self._settings]
        if not active:
            return logits
        rows, settings, heat = zip(*active, strict=True)
        mass, top_p, top_k = zip(*settings, strict=True)
        place = self._tensor(rows, torch.int64)
        most = self._tensor([min(k or logits.shape[-1], logits.shape[-1]) for k in top_k], torch.int32)
        scores = logits[place] / self._tensor(heat, torch.float32).unsqueeze(-1)
        scores = apply_top_k_top_p(scores, most, self._tensor(top_p, torch.float32))
        scores = cut(scores, self._tensor(mass, torch.float32))
        logits[place] = logits[place].masked_fill(scores.isneginf(), float("-inf"))
        return logits

    def _tensor(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(self._device, non_blocking=True)
