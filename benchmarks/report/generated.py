"""Chat models and adapters with seeded random weights, because only their sizes matter for timing."""

import json
from pathlib import Path

from adapters.content.base_shapes import read_base

SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
VOCABULARY = 288
"""256 bytes and the special tokens, rounded up."""


def write_model(folder: Path, *, hidden: int, ffn: int, layers: int) -> Path:
    """Write a Llama with seeded random weights and a byte-level tokenizer, once per folder."""
    if (folder / "config.json").exists():
        return folder
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        eos_token_id=256, initializer_range=0.05,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with one token per byte and the tokens of `SPECIAL`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0])
    fast.chat_template = "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}<|assistant|>"
    fast.save_pretrained(folder)


def write_adapters(folder: Path, base: Path, count: int, rank: int) -> list[Path]:
    """Write `count` different adapters over all linear layers of `base` in peft's layout, with small random weights."""
    return [_write_adapter(folder / f"adapter-{i:04d}", base, i, rank) for i in range(count)]


def _write_adapter(folder: Path, base: Path, seed: int, rank: int) -> Path:
    if (folder / "adapter_config.json").exists():  # which is written last
        return folder
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    linear = read_base(base).linear
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for module, (width_out, width_in) in linear.items():
        for half, shape in (("A", (rank, width_in)), ("B", (width_out, rank))):
            name = f"base_model.model.{module}.lora_{half}.weight"
            tensors[name] = torch.randn(shape, generator=generator).bfloat16() * 0.01
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in linear}), "base_model_name_or_path": "base",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def size(folder: Path) -> int:
    """Return the bytes of an adapter's tensors file."""
    return (folder / "adapter_model.safetensors").stat().st_size
