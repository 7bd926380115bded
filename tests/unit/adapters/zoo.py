"""Invalid adapters, each with words that its refusal must contain, for unit tests and tests on a real engine."""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.unit.adapters.makers import HIDDEN, LAYERS, Tensors, config, name, tensors, write_adapter

Q0A, Q0B = name(0, "self_attn.q_proj", "A"), name(0, "self_attn.q_proj", "B")
DOWN1A, DOWN1B = name(1, "mlp.down_proj", "A"), name(1, "mlp.down_proj", "B")


@dataclass(frozen=True)
class Bad:
    """`make` writes the adapter. Each of `words` must be in one of the reported faults."""

    name: str
    make: Callable[[Path], object]
    words: tuple[str, ...]


def _changed(label: str, change: Callable[[Tensors], object], *words: str, **settings: Any) -> Bad:
    def run(weights: Tensors) -> None:
        change(weights)

    return Bad(label, lambda folder: write_adapter(folder, change=run, settings=settings), words)


def _set(label: str, *words: str, **settings: Any) -> Bad:
    return Bad(label, lambda folder: write_adapter(folder, settings=settings), words)


def _raw(label: str, edit: Callable[[bytes], bytes], *words: str) -> Bad:
    """Edit the bytes of the tensor file."""

    def make(folder: Path) -> None:
        path = write_adapter(folder) / "adapter_model.safetensors"
        path.write_bytes(edit(path.read_bytes()))

    return Bad(label, make, words)


def _text(label: str, text: str, *words: str) -> Bad:
    """Replace the text of the config."""
    return Bad(label, lambda folder: (write_adapter(folder) / "adapter_config.json").write_text(text), words)


def _with_header(edit: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def run(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        edit(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return run


def _poke(key: str, value: float) -> Callable[[Tensors], None]:
    def run(weights: Tensors) -> None:
        weights[key][0, 0] = value

    return run


def _files(label: str, act: Callable[[Path], object], *words: str) -> Bad:
    return Bad(label, lambda folder: act(write_adapter(folder)), words)


def _link(file: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        os.rename(folder / file, folder.parent / f"{folder.name}-outside")
        os.symlink(folder.parent / f"{folder.name}-outside", folder / file)

    return run


def _fifo(folder: Path) -> None:
    os.unlink(folder / "adapter_model.safetensors")
    os.mkfifo(folder / "adapter_model.safetensors")


def _pickle(folder: Path) -> None:
    os.unlink(folder / "adapter_model.safetensors")
    torch.save(tensors(), folder / "adapter_model.bin")


def _full_rank(folder: Path) -> Path:
    weights = tensors(8)
    for layer in range(LAYERS):
        for half, shape in (("A", (16, HIDDEN)), ("B", (HIDDEN, 16))):
            weights[name(layer, "self_attn.q_proj", half)] = torch.zeros(shape)
    return write_adapter(folder, weights=weights, settings={"rank_pattern": {"q_proj": 4}})


def _move(old: str, new: str) -> Callable[[Tensors], None]:
    def run(weights: Tensors) -> None:
        for key in [k for k in weights if old in k]:
            weights[key.replace(old, new)] = weights.pop(key)

    return run


def _add(module: str, out: int = HIDDEN, width: int = HIDDEN) -> Callable[[Tensors], None]:
    def run(weights: Tensors) -> None:
        weights[f"base_model.model.{module}.lora_A.weight"] = torch.zeros(8, width)
        weights[f"base_model.model.{module}.lora_B.weight"] = torch.zeros(out, 8)

    return run


ZOO: list[Bad] = [
    # files
    _files("no-weights", lambda f: (f / "adapter_model.safetensors").unlink(), "adapter_model.safetensors is missing"),
    _files("no-config", lambda f: (f / "adapter_config.json").unlink(), "adapter_config.json is missing"),
    _files("pickle-only", _pickle, "may hold code"),
    _files("weights-in-parts", lambda f: (f / "adapter_model.safetensors").rename(
        f / "adapter_model-00001-of-00002.safetensors"), "in one file"),
    _files("weights-are-a-link", _link("adapter_model.safetensors"), "is a link"),
    _files("config-is-a-link", _link("adapter_config.json"), "is a link"),
    _files("weights-are-a-pipe", _fifo, "not a regular file"),
    # config
    _text("config-no-json", "r: 8", "not JSON"),
    _text("config-a-list", "[]", "JSON object"),
    _text("config-nan", json.dumps(config()).replace('"r": 8', '"r": 8, "lora_dropout": NaN'), "NaN"),
    _text("config-too-deep", '{"a":' * 100_000, "not JSON"),
    _set("rank-is-text", "r:", "integer", r="8"),
    _set("rank-zero", "r:", r=0),
    _set("alpha-zero", "change nothing", lora_alpha=0),
    _set("alpha-of-a-pattern-zero", "change nothing", alpha_pattern={"q_proj": 0}),
    _set("alpha-tiny", "its scale 1.25e-301", lora_alpha=1e-300),
    _set("alpha-too-small-to-divide", "its scale 0", lora_alpha=5e-324),
    _set("alpha-of-a-pattern-huge", "its scale 1.25e+299", alpha_pattern={"q_proj": 1e300}),
    _set("no-targets", "target_modules is missing", target_modules=None),
    _set("dora", "DoRA", use_dora=True),
    _set("other-peft", "IA3", peft_type="IA3"),
    _set("modules-to-save", "modules_to_save", modules_to_save=["lm_head"]),
    _set("bias-all", "bias is 'all'", bias="all"),
    _set("lora-bias", "lora_bias", lora_bias=True),
    _set("trained-tokens", "trainable_token_indices", trainable_token_indices=[1, 2]),
    _set("target-parameters", "target_parameters", target_parameters=["mlp.experts.gate_up_proj"]),
    _text("alpha-missing", json.dumps(config()).replace('"lora_alpha"', '"alpha"'), "lora_alpha is missing"),
    _set("x-lora", "cannot be merged", peft_type="XLORA"),
    _set("layer-replication", "layer_replication", layer_replication=[[0, 2], [1, 2]]),
    _set("activated-lora", "alora_invocation_tokens", alora_invocation_tokens=[5]),
    _set("qalora", "use_qalora", use_qalora=True),
    _set("pissa", "path_initial_model_for_weight_conversion", init_lora_weights="pissa_niter_4"),
    _set("classifier", "SEQ_CLS", task_type="SEQ_CLS"),
    _set("feature-of-tomorrow", "use_hyperlora", "is unknown", use_hyperlora={"on": 1}),
    _set("bad-pattern", "not a usable pattern", rank_pattern={"q_proj(": 8}),
    # the tensor file
    _raw("empty-file", lambda d: b"", "0 bytes"),
    _raw("cut-in-half", lambda d: d[: len(d) // 2], "truncated"),
    _raw("cut-by-a-byte", lambda d: d[:-1], "truncated"),
    _raw("tail", lambda d: d + b"x", "extra bytes"),
    _raw("header-of-4-GiB", lambda d: struct.pack("<Q", 1 << 32) + d[8:], "truncated or not a safetensors"),
    _raw("header-no-json", lambda d: d[:8] + b"[" * (len(d) - 8), "not JSON"),
    _raw("a-zip", lambda d: b"PK\x03\x04" + d, "not a safetensors"),
    _raw("overlap", _with_header(lambda h: h[Q0A].update(data_offsets=[0, 2048])), "gap or overlap"),
    _raw("outside", _with_header(lambda h: h[Q0A].update(data_offsets=[1 << 40, (1 << 40) + 2048])), "offsets"),
    _raw("negative-offset", _with_header(lambda h: h[Q0A].update(data_offsets=[-2048, 0])), "offsets"),
    _raw("shape-lies", _with_header(lambda h: h[Q0A].update(shape=[8, HIDDEN * 2])), "bytes"),
    _raw("huge-shape", _with_header(lambda h: h[Q0A].update(shape=[1 << 39, 1 << 39])), "bytes"),
    _raw("dtype-unknown", _with_header(lambda h: h[Q0A].update(dtype="F4")), "unknown dtype"),
    _raw("dtype-no-text", _with_header(lambda h: h[Q0A].update(dtype=["BF16"])), "unknown dtype"),
    _raw("name-twice", lambda d: _doubled(d), "twice"),
    Bad("no-tensors", lambda f: write_adapter(f, weights={}), ("no tensors",)),
    # names and halves
    _changed("half-missing", lambda w: w.pop(Q0B), "lora_B is missing"),
    _changed("other-half-missing", lambda w: w.pop(DOWN1A), "lora_A is missing"),
    _changed("module-missing", lambda w: (w.pop(Q0A), w.pop(Q0B)), "target_modules includes this layer"),
    _changed("module-unknown", _add("model.layers.0.self_attn.foo_proj"), "no such linear layer", "q_proj"),
    _changed("module-not-targeted", lambda w: None, "target_modules does not", target_modules=["q_proj"]),
    _changed("layers-not-targeted", lambda w: None, "target_modules does not", layers_to_transform=[0]),
    _changed("too-many-layers", lambda w: w.update(tensors(layers=4)), "has no layer 2", "2 layers"),
    _changed("other-family", _move("self_attn.q_proj", "self_attn.c_attn"), "no such linear layer"),
    _changed("head", _add("lm_head", 256), "head is not supported"),
    _changed("embedding", _add("model.embed_tokens", HIDDEN, 256), "token embedding"),
    _changed("embedding-parts", _move("self_attn.q_proj.lora_A.weight", "embed_tokens.lora_embedding_A"), "embedding"),
    _changed("copy-of-the-head", lambda w: w.update({"base_model.model.lm_head.weight": torch.zeros(256, HIDDEN)}),
             "save_embedding_layers"),
    _changed("experts", _add("model.layers.0.mlp.experts.3.gate_proj"), "experts"),
    _changed("folded", _add("model.layers.0.self_attn.kv_b_proj"), "kv_b_proj", "folds"),
    _changed("magnitude", lambda w: w.update({Q0A.replace("lora_A.weight", "lora_magnitude_vector"): torch.ones(8)}),
             "DoRA"),
    _changed("bias-tensor", lambda w: w.update({Q0B.replace("weight", "bias"): torch.zeros(HIDDEN)}), "is a bias"),
    _changed("trained-tokens-tensor",
             lambda w: w.update({"model.embed_tokens.token_adapter.trainable_tokens_delta": torch.ones(2, HIDDEN)}),
             "trained rows of the token embedding"),
    _changed("router-of-granite", _add("model.layers.0.block_sparse_moe.router.layer"), "their router"),
    _changed("saved-module", lambda w: w.update({"base_model.model.lm_head.modules_to_save.weight": torch.zeros(9, 9)}),
             "modules_to_save"),
    _changed("two-spellings", lambda w: w.update({Q0A.removeprefix("base_model.model."): torch.zeros(8, HIDDEN)}),
             "twice"),
    _changed("two-adapters", lambda w: w.update({Q0A.replace("lora_A", "lora_A.second"): torch.zeros(8, HIDDEN)}),
             "several adapters"),
    # shapes, ranks, values
    Bad("rank-over-limit", lambda f: write_adapter(f, rank=32), ("rank 32 is over the 16", "max_rank")),
    Bad("rank-differs-from-config", lambda f: write_adapter(f, rank=16, settings={"r": 8}), ("rank 16", "says 8")),
    Bad("rank-differs-from-pattern", _full_rank, ("rank 16", "rank_pattern")),
    _changed("halves-differ", lambda w: w.update({Q0B: torch.zeros(HIDDEN, 4)}), "must be equal"),
    _changed("input-width", lambda w: w.update({Q0A: torch.zeros(8, HIDDEN // 2)}), "takes 64 inputs", "128"),
    _changed("output-width", lambda w: w.update({Q0B: torch.zeros(HIDDEN * 2, 8)}), "gives 256 outputs", "128"),
    _changed("no-matrix", lambda w: w.update({Q0A: torch.zeros(8)}), "must be matrices"),
    _changed("empty-tensor", lambda w: w.update({Q0A: torch.zeros(0, HIDDEN), Q0B: torch.zeros(HIDDEN, 0)}), "rank 0"),
    _changed("whole-numbers", lambda w: w.update({Q0A: torch.zeros(8, HIDDEN, dtype=torch.int32)}), "I32"),
    _changed("eight-bit", lambda w: w.update({Q0A: torch.zeros(8, HIDDEN, dtype=torch.float8_e4m3fn)}), "F8_E4M3"),
    _changed("nan", _poke(Q0A, float("nan")), "1 values that are NaN or infinite"),
    _changed("infinite", _poke(DOWN1B, float("inf")), "NaN or infinite"),
    _changed("too-large", lambda w: w[Q0A].mul_(1e6), "can overflow"),
    _changed("over-bfloat16", lambda w: w.update({Q0A: torch.full((8, HIDDEN), 3.4e38)}), "can overflow"),
    _set("too-large-by-alpha", "can overflow", lora_alpha=1e9),
]  # fmt: skip


def _doubled(data: bytes) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length].decode()
    entry = json.dumps({Q0A: json.loads(header)[Q0A]})[1:-1]
    text = ("{" + entry + "," + header.lstrip()[1:]).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def write_zoo(folder: Path) -> dict[str, Path]:
    """Write all of them, each in a folder with its name."""
    made = {}
    for bad in ZOO:
        made[bad.name] = folder / bad.name
        bad.make(made[bad.name])
    return made
