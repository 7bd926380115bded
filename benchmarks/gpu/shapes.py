"""The bases: random weights in the shape of an 8B or a 32B model, or tiny ones for trying the run.

The weights are written in parts from one pool of random values, so writing 16 GB takes no more memory than the pool.
The tokenizer is the starter's, which has one token per byte, so a prompt has as many tokens as letters.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from benchmarks.models import STARTER_WEIGHTS

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
POOL = 16_777_213
"""A prime, so that no two rows of a matrix use the same part of the pool."""
ONE = 0x3F80
"""1.0 in bfloat16."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model and of its load.

    Attributes:
        prompt: tokens of a long prompt.
        chunk: most tokens of a step while adapters are swapped.
        kind: llama, or qwen2, whose queries, keys and values have a bias.
    """

    name: str
    hidden: int
    ffn: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    context: int
    kv_cache: str
    step: int
    prompt: int
    chunk: int
    kind: Literal["llama", "qwen2"] = "llama"

    def config(self) -> dict[str, object]:
        architecture = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[self.kind]
        return {
            "architectures": [architecture], "model_type": self.kind, "torch_dtype": "bfloat16",
            "hidden_size": self.hidden, "intermediate_size": self.ffn, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.key_heads, "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context, "rope_theta": 500000.0, "rms_norm_eps": 1e-05,
            "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 257, "pad_token_id": 256,
        }  # fmt: skip

    def tensors(self) -> dict[str, list[int]]:
        """Return the shapes of the tensors by name, in the order of the file, with the head last."""
        keys = self.hidden // self.heads * self.key_heads
        shapes = {"model.embed_tokens.weight": [self.vocabulary, self.hidden], "model.norm.weight": [self.hidden]}
        for layer in range(self.layers):
            parts = {
                "self_attn.q_proj": [self.hidden, self.hidden], "self_attn.k_proj": [keys, self.hidden],
                "self_attn.v_proj": [keys, self.hidden], "self_attn.o_proj": [self.hidden, self.hidden],
                "mlp.gate_proj": [self.ffn, self.hidden], "mlp.up_proj": [self.ffn, self.hidden],
                "mlp.down_proj": [self.hidden, self.ffn], "input_layernorm": [self.hidden],
                "post_attention_layernorm": [self.hidden],
            }  # fmt: skip
            if self.kind == "qwen2":
                sides = {"q_proj": self.hidden, "k_proj": keys, "v_proj": keys}
                shapes |= {f"model.layers.{layer}.self_attn.{name}.bias": [side] for name, side in sides.items()}
            shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
        return {**shapes, "lm_head.weight": [self.vocabulary, self.hidden]}


SHAPES = {
    "8b": Shape("8b", 4096, 14336, 32, 32, 8, 128256, 16384, "8GiB", step=8192, prompt=8000, chunk=2048),
    "tiny": Shape("tiny", 128, 256, 2, 4, 2, 320, 1024, "64MiB", step=512, prompt=400, chunk=128),
}
LARGER = Shape("32b", 5120, 27648, 64, 40, 8, 152064, 32768, "16GiB", step=8192, prompt=8000, chunk=2048, kind="qwen2")
"""The sizes of Qwen2.5-32B."""


def write_base(folder: Path, shape: Shape, *, values: bool = True) -> Path:
    """Write weights, configuration and tokenizer, once per folder. Without values the file takes no disk space."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER:
        shutil.copy(STARTER_WEIGHTS / name, folder)
    tensors = shape.tensors()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(_header(tensors))
        if values:
            _write_values(stream, shape)
        else:
            stream.truncate(stream.tell() + 2 * sum(int(np.prod(sides)) for sides in tensors.values()))
    (folder / "config.json").write_text(json.dumps(shape.config()))
    return folder


def _write_values(stream: BinaryIO, shape: Shape) -> None:
    pool = _pool()
    for name, sides in shape.tensors().items():
        if name == "lm_head.weight":
            _write_head(stream, pool, shape)
        elif len(sides) == 1:
            stream.write(np.full(sides, ONE, np.uint16).tobytes())
        else:
            _write(stream, pool, int(np.prod(sides)))


def _header(tensors: dict[str, list[int]]) -> bytes:
    entries, end = {}, 0
    for name, sides in tensors.items():
        begin, end = end, end + 2 * int(np.prod(sides))
        entries[name] = {"dtype": "BF16", "shape": sides, "data_offsets": [begin, end]}
    raw = json.dumps(entries).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def _pool() -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """Return random values in bfloat16, which is the upper half of a 32-bit float."""
    values = np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _write(stream: BinaryIO, pool: np.ndarray[tuple[int], np.dtype[np.uint16]], count: int) -> None:
    at = stream.tell() // 2 % POOL
    while count:
        part = pool[at : at + count]
        stream.write(part.data)
        count, at = count - len(part), 0


def _write_head(stream: BinaryIO, pool: np.ndarray[tuple[int], np.dtype[np.uint16]], shape: Shape) -> None:
    """Write a head that only predicts letters: the other rows are zero, and some letter always scores above that."""
    vocabulary = json.loads((STARTER_WEIGHTS / "tokenizer.json").read_text())["model"]["vocab"]
    letters = {number for token, number in vocabulary.items() if len(token) == 1 and token.isascii()}
    for row in range(max(letters) + 1):
        if row in letters:
            _write(stream, pool, shape.hidden)
        else:
            stream.write(bytes(2 * shape.hidden))
    stream.truncate(stream.tell() + 2 * shape.hidden * (shape.vocabulary - max(letters) - 1))
