"""Attention over concatenated inputs, as a function that transformers' networks call.

| device | implementation                                                                   |
|--------|----------------------------------------------------------------------------------|
| CUDA   | `torch.nn.attention.varlen`: FlashAttention, which takes 16 bits only            |
| CPU    | PyTorch's attention, input by input: slow, used by tests                         |
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

NAME = "roundhouse_unpadded"
"""The function's name in transformers. No mask function is registered for it, so the library makes no masks."""
UNKNOWN = ("position_bias", "softcap", "s_aux", "cache")
"""Arguments of some networks that this attention does not support."""


def register() -> None:
    """Register `attend` with transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


def attend(
    module: Any,
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    attention_mask: "Tensor | None",
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: "Tensor | None" = None,
    max_length_q: int = 0,
    **more: Any,
) -> "tuple[Tensor, None]":
    """Compute attention as the library does: 1 x heads x tokens x size each to 1 x tokens x heads x size.

    Raises NotImplementedError for arguments that it does not support.
    """
    if cu_seq_lens_q is None:
        raise NotImplementedError(f"{type(module).__name__} does not pass on where its inputs end")
    unknown = [name for name in UNKNOWN if more.get(name) is not None]
    if unknown or attention_mask is not None:
        raise NotImplementedError(f"{type(module).__name__} attends with {', '.join(unknown) or 'a mask of its own'}")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    reach = -1 if sliding_window is None else sliding_window - 1  # FlashAttention does not count the token itself
    window = (reach, 0 if causal else reach)
    q, k, v = (rows[0].transpose(0, 1) for rows in (query, key, value))
    compute = _flash if query.is_cuda else _by_input
    return compute(q, k, v, cu_seq_lens_q, max_length_q, scaling, window)[None], None


def _flash(
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    boundaries: "Tensor",
    longest: int,
    scaling: float | None,
    window: tuple[int, int],
) -> "Tensor":
    """Compute attention of tokens x heads x size each. boundaries: inputs + 1, int32."""
    from torch.nn.attention.varlen import varlen_attn

    # pass only non-default options, as PyTorch before 2.13 lacks some
    options: dict[str, Any] = {}
    if scaling is not None and scaling != query.shape[-1] ** -0.5:
        options["scale"] = scaling
    if window != (-1, -1):
        options["window_size"] = window
    if query.shape[1] != key.shape[1]:
        options["enable_gqa"] = True
    attended = varlen_attn(query, key, value, boundaries, boundaries, longest, longest, **options)
    return attended if not isinstance(attended, tuple) else attended[0]


def _by_input(
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    boundaries: "Tensor",
    longest: int,
    scaling: float | None,
    window: tuple[int, int],
) -> "Tensor":
    """Compute the same with PyTorch's attention, one input at a time."""
    import torch

    grouped = query.shape[1] != key.shape[1]
    parts = []
    for start, end in pairwise(boundaries.tolist()):
        q, k, v = (rows[start:end].transpose(0, 1)[None] for rows in (query, key, value))
        mask = _window_mask(end - start, window)
        attended = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scaling, enable_gqa=grouped
        )
        parts.append(attended[0].transpose(0, 1))
    return torch.cat(parts)


def _window_mask(size: int, window: tuple[int, int]) -> "Tensor | None":
    """Return which keys (columns) each query (row) sees, size x size; None for all.

    window: tokens to the left and right; -1 for all.
    """
    import torch

    left, right = window
    if (left, right) == (-1, -1):
        return None
    positions = torch.arange(size)
    ahead = positions[None, :] - positions[:, None]
    seen = torch.ones(size, size, dtype=torch.bool)
    if left >= 0:
        seen &= ahead >= -left
    if right >= 0:
        seen &= ahead <= right
    return seen
