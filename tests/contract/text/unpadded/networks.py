"""Small networks with random weights, of the architectures in our recipes and of others that people use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from models.text.unpadded.graphs import Replay

SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80,
    "max_position_embeddings": 66, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
PADDING = 1
"""RoBERTa's padding token."""


def bert(**more: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(**{**SIZES, **more})


def roberta(**more: Any) -> Any:
    from transformers import RobertaConfig

    return RobertaConfig(**{**SIZES, "pad_token_id": PADDING, "type_vocab_size": 1, **more})


def xlm_roberta(**more: Any) -> Any:
    from transformers import XLMRobertaConfig

    return XLMRobertaConfig(**{**SIZES, "pad_token_id": PADDING, "type_vocab_size": 1, **more})


def modernbert(**more: Any) -> Any:
    """Return a config in which two of three layers see 4 tokens to each side."""
    from transformers import ModernBertConfig

    own = {"local_attention": 8, "global_attn_every_n_layers": 3, "cls_token_id": 2, "sep_token_id": 3}
    return ModernBertConfig(**{**SIZES, **own, "initializer_range": 0.1, **more})


def qwen3(**more: Any) -> Any:
    """Return a causal config in which two layers see the last 6 tokens, with two KV heads for four heads."""
    from transformers import Qwen3Config

    own = {
        "head_dim": 12, "num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 6,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    }  # fmt: skip
    return Qwen3Config(**{**SIZES, **own, "initializer_range": 0.1, **more})


CONFIGS: dict[str, Callable[..., Any]] = {
    "bert": bert, "roberta": roberta, "xlm-roberta": xlm_roberta, "modernbert": modernbert, "qwen3": qwen3,
}  # fmt: skip


def network(name: str, seed: int = 0, **more: Any) -> Any:
    """Return a network without a head."""
    return network_of("AutoModel", CONFIGS[name](**more), seed)


def network_of(kind: str, config: Any, seed: int = 0) -> Any:
    """Return a network. `kind`: a class of transformers that makes models from configs."""
    import torch
    import transformers

    torch.manual_seed(seed)
    return getattr(transformers, kind).from_config(config).eval().requires_grad_(False)


class SameFunction:
    """A capture that keeps the function. It counts captures and replays."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, function: "Callable[[], Tensor]") -> "tuple[Replay, int]":
        self.captures += 1

        def replay() -> "Tensor":
            self.replays += 1
            return function()

        return replay, 1 << 20
