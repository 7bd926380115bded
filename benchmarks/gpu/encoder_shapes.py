"""The encoders of the shipped recipes with random weights, in the sizes of bge-large-en-v1.5 and bge-reranker-v2-m3.

The time of a step does not depend on the values of the weights. The tokenizer is that of the shipped starter reranker.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks.report.environment import ROOT

TOKENIZER = ROOT / "models" / "starter" / "pack" / "starter-rerank"
LARGE: dict[str, Any] = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
}  # fmt: skip
TINY: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 5600,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "embed": {
        "architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522, "max_position_embeddings": 512,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0, "dtype": "float16",
    },
    "rerank": {
        "architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta", "vocab_size": 250002,
        "max_position_embeddings": 8194, "type_vocab_size": 1, "layer_norm_eps": 1e-05, "hidden_act": "gelu",
        "pad_token_id": 0, "dtype": "float16", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
    },
}  # fmt: skip
POOL = 4_194_301
"""A prime, so that no two rows of a matrix use the same part of the pool."""


def config(kind: str, *, tiny: bool = False) -> dict[str, Any]:
    """Return the `config.json` of an embedding model or a reranker."""
    return {**CONFIGS[kind], **(TINY if tiny else LARGE)}


def tensors(config: dict[str, Any]) -> dict[str, list[int]]:
    """Return the names and shapes of the weights, as transformers defines them."""
    import torch
    import transformers

    values = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    settings = transformers.AutoConfig.for_model(config["model_type"], **values)
    with torch.device("meta"):
        network = getattr(transformers, config["architectures"][0])(settings)
    return {name: list(value.shape) for name, value in network.state_dict().items() if value.is_floating_point()}


def write_encoder(kind: str, folder: Path, *, tiny: bool = False) -> Path:
    """Write weights, configuration and tokenizer, once per folder."""
    if (folder / "config.json").exists():
        return folder
    made = config(kind, tiny=tiny)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(TOKENIZER / "tokenizer.json", folder)
    most = made["max_position_embeddings"] - (0 if kind == "embed" else 2)
    words: dict[str, Any] = json.loads((TOKENIZER / "tokenizer_config.json").read_text()) | {"model_max_length": most}
    if made["type_vocab_size"] == 1:
        words["model_input_names"] = ["input_ids", "attention_mask"]
    pool = (np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(0.02)).astype(np.float16)
    values, begin = {}, 0
    for name, sides in tensors(made).items():
        if len(sides) == 1:
            values[name] = np.full(sides, float("LayerNorm.weight" in name), np.float16)
        else:
            # embeddings are normalised by the network; matrices are scaled so that values neither explode nor vanish
            scale = 1.0 if "embeddings" in name else 50 / sides[1] ** 0.5
            values[name] = np.resize(np.roll(pool * np.float16(scale), -begin), sides)
            begin = (begin + int(np.prod(sides))) % POOL
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    files: dict[str, Any] = {"tokenizer_config.json": words}
    if kind == "embed":
        files |= _pooling(made["hidden_size"], most)
    for name, value in (files | {"config.json": made}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


def _pooling(hidden: int, most: int) -> dict[str, Any]:
    """Return the files that define the embedding as the first token's output, normalised."""
    names = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(names.items())
    ]
    return {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": hidden, "pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"max_seq_length": most, "do_lower_case": False},
    }
