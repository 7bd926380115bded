"""A tiny random Llama with a byte-level tokenizer, and generated adapters on it: real files for the real engine.

float32 on purpose: then two greedy decoders only differ if the two best logits are equal up to rounding.
"""

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from models.messages import AdapterRef
from registry.recipes.definition import AdapterPlaces, Batching, EngineSpec, Memory, Recipe, Task
from registry.recipes.fields import PathSource

HIDDEN, KV, FFN, LAYERS, VOCABULARY, CONTEXT = 128, 64, 256, 2, 288, 512
END = 257
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN, KV),
    "self_attn.v_proj": (HIDDEN, KV),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (HIDDEN, FFN),
    "mlp.up_proj": (HIDDEN, FFN),
    "mlp.down_proj": (FFN, HIDDEN),
}
TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>' + (message['content'] or '') -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of bytes and `<|pad|>`, `<|end|>`, `<|user|>`, `<|assistant|>`, `<|system|>`, `<|tool|>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def write_base(folder: Path, *, vocabulary: int = VOCABULARY) -> Path:
    """Write a random base. Its answers mean nothing, but are the same on every machine."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=END,
        initializer_range=0.15,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_adapter(
    folder: Path,
    seed: int,
    *,
    rank: int = 8,
    scale: float = 0.3,
    layers: int = LAYERS,
    modules: tuple[str, ...] = tuple(SHAPES),
    change: dict[str, torch.Tensor] | None = None,
) -> AdapterRef:
    """Write a random adapter in peft's layout, strong enough to change every greedy answer.

    `change`: tensors to replace or add, to make an adapter that must be refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for module in modules:
            width_in, width_out = SHAPES[module]
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, width_in, generator=generator) * scale
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(width_out, rank, generator=generator) * scale
    tensors |= change or {}
    path = folder / "adapter_model.safetensors"
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, path)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "bias": "none",
        "target_modules": [module.split(".")[1] for module in modules],
        "base_model_name_or_path": "base",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    digest = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    return AdapterRef(digest=digest, path=str(folder), rank=rank, bytes=path.stat().st_size)


def recipe(base: Path, *, device_places: int = 4, host_places: int = 16, **flags: object) -> Recipe:
    return Recipe(
        id="tiny",
        version=1,
        task=Task.CHAT,
        source=PathSource(path=str(base)),
        engine=EngineSpec(name="vllm", flags=flags),
        dtype="float32",
        context_length=CONTEXT,
        memory=Memory(kv_cache=64 << 20, adapters=AdapterPlaces(device=device_places, host=host_places, max_rank=16)),
        batching=Batching(max_requests=16, max_tokens=1024),
    )
