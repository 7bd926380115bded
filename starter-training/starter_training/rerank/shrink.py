"""Shrinks all-MiniLM-L6-v2: a smaller vocabulary, fewer layers, narrower feed-forward blocks, int8 storage."""

from __future__ import annotations

import copy
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, BertModel

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_TOKENS = 256
"""Positions of the student. The embedding model itself was trained on at most 256."""

_SCRIPTS_LEFT_OUT = frozenset(
    [
        "CJK", "KATAKANA", "HIRAGANA", "HANGUL", "BENGALI", "DEVANAGARI", "TAMIL", "THAI", "TIBETAN", "SINHALA",
        "KANNADA", "ARABIC", "HEBREW", "ARMENIAN", "GEORGIAN",
    ]
)  # fmt: skip


def _keep_character(token: str) -> bool:
    letter = token.removeprefix("##") if len(token) > 1 else token
    return len(letter) == 1 and unicodedata.name(letter, "?").split()[0] not in _SCRIPTS_LEFT_OUT


def rank_vocabulary(tokenizer: Tokenizer, texts: Iterable[str], forced: Iterable[str], common: int) -> list[str]:
    """Return the word pieces, the most needed first, so that every long enough prefix is a usable vocabulary.

    First come the special tokens and every single character (also as a continuation) of the scripts kept, so
    that a rare word falls apart instead of becoming [UNK]; then the pieces of `forced` texts, the first `common`
    whole words of the full vocabulary (which lists them by frequency in general English), then all others by
    their count in `texts`.
    """
    full: dict[str, int] = tokenizer.get_vocab()
    in_order = sorted(full, key=lambda token: full[token])
    start = full["the"]
    ranked = [*SPECIAL, *(t for t in in_order if _keep_character(t))]
    ranked += [t for e in tokenizer.encode_batch(list(forced), add_special_tokens=False) for t in e.tokens]
    ranked += in_order[start : start + common]
    counts: Counter[str] = Counter()
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        counts.update(encoding.tokens)
    ranked += [token for token, _ in counts.most_common()]
    return list(dict.fromkeys(ranked))


def cut_tokenizer(template: dict[str, Any], tokens: list[str]) -> Tokenizer:
    """Return the word-piece tokenizer of `template` (a parsed tokenizer.json) with `tokens` as its vocabulary."""
    data = copy.deepcopy(template)
    ids = {token: number for number, token in enumerate(tokens)}
    data["model"]["vocab"] = ids
    data["truncation"] = data["padding"] = None
    for added in data["added_tokens"]:
        added["id"] = ids[added["content"]]
    special = data["post_processor"].get("special_tokens", {})
    for name, entry in special.items():
        entry["ids"] = [ids[name]]
    if "cls" in data["post_processor"]:
        data["post_processor"].update(cls=["[CLS]", ids["[CLS]"]], sep=["[SEP]", ids["[SEP]"]])
    return Tokenizer.from_str(json.dumps(data))


def save_int8(model: BertModel, rows: list[int], path: Path) -> None:
    """Store the model with one byte per weight and one scale per row; only `rows` of the word embeddings."""
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        kept = value[rows] if name == "embeddings.word_embeddings.weight" else value
        if kept.ndim == 2:
            scale = kept.abs().amax(1, keepdim=True).clamp_min(1e-8) / 127
            tensors[name] = (kept / scale).round().to(torch.int8)
            tensors[name + ".scale"] = scale.half()
        elif kept.is_floating_point():
            tensors[name] = kept.half()
    save_file(tensors, path)


def load_int8(path: Path, config: BertConfig) -> BertModel:
    """Rebuild the float32 embedding model that `save_int8` stored."""
    stored = load_file(path)
    state = {
        name: value.float() * stored[name + ".scale"].float() if value.dtype == torch.int8 else value.float()
        for name, value in stored.items()
        if not name.endswith(".scale")
    }
    config = BertConfig(**{**config.to_dict(), "vocab_size": len(state["embeddings.word_embeddings.weight"])})
    model = BertModel(config)
    model.load_state_dict(state, strict=False)
    return model.eval()


@torch.no_grad()
def _neuron_importance(teacher: BertModel, ids: Tensor, mask: Tensor) -> list[Tensor]:
    """Return how much each hidden neuron adds to its feed-forward block's output on sample text: shapes [hidden]."""
    seen: list[Tensor] = []

    def keep(_module: object, _inputs: object, out: Tensor) -> None:
        seen.append(out[mask.bool()].abs().mean(0))

    handles = [block.intermediate.register_forward_hook(keep) for block in teacher.encoder.layer]
    teacher(input_ids=ids, attention_mask=mask)
    for handle in handles:
        handle.remove()
    return [s * b.output.dense.weight.norm(dim=0) for s, b in zip(seen, teacher.encoder.layer, strict=True)]


def make_student(
    teacher: BertModel, vocabulary: int, layers: list[int], hidden: int, ids: Tensor, mask: Tensor
) -> BertForSequenceClassification:
    """Build the cross-encoder from layers of the teacher, its first `vocabulary` embeddings and `hidden` neurons.

    `ids` and `mask` ([texts, tokens]) are sample input, which decides which feed-forward neurons stay.
    """
    config = BertConfig(**{
        **teacher.config.to_dict(), "vocab_size": vocabulary, "num_hidden_layers": len(layers),
        "intermediate_size": hidden, "max_position_embeddings": MAX_TOKENS, "num_labels": 1,
        # Training takes about one epoch, so dropout would only cost time, a seventh of it on a CPU.
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "id2label": {0: "relevance"}, "label2id": {"relevance": 0}, "architectures": None,
    })  # fmt: skip
    student = BertForSequenceClassification(config)
    state = {k: v for k, v in teacher.state_dict().items() if not k.startswith("encoder.layer.")}
    state["embeddings.word_embeddings.weight"] = state["embeddings.word_embeddings.weight"][:vocabulary]
    state["embeddings.position_embeddings.weight"] = state["embeddings.position_embeddings.weight"][:MAX_TOKENS]
    importance = _neuron_importance(teacher, ids, mask)
    for new, old in enumerate(layers):
        keep = importance[old].topk(hidden).indices.sort().values
        for name, value in teacher.encoder.layer[old].state_dict().items():
            if name.startswith("intermediate.dense"):
                value = value[keep]
            elif name == "output.dense.weight":
                value = value[:, keep]
            state[f"encoder.layer.{new}.{name}"] = value
    state.pop("embeddings.position_ids", None)
    state.pop("embeddings.token_type_ids", None)
    missing, unexpected = student.bert.load_state_dict(state, strict=False)
    if unexpected or [name for name in missing if "_ids" not in name]:
        raise ValueError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    return student
