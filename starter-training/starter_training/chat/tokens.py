"""The tokenizer: one token per UTF-8 byte (its id is the byte's value) and a few special tokens, without merges.

Bytes keep letters visible to the model, which most tasks are about, and no text is unknown.
"""

from __future__ import annotations

import json
from pathlib import Path

from starter_training.chat.tasks.conversations import TASK_NAMES, Example

PAD, END, SYSTEM, USER, ASSISTANT = 256, 257, 258, 259, 260
SKILL = 264
"""Id of the first reserved skill token. `SKILL + i` stands for task i in base training and is not used later."""
VOCABULARY = 320
CONTEXT = 512
"""Most tokens of a prompt and its answer together."""
SPECIALS: tuple[str, ...] = (
    "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", *(f"<|reserved_{i}|>" for i in range(3)),
    *(f"<|skill_{i:02d}|>" for i in range(len(TASK_NAMES))),
    *(f"<|reserved_{i}|>" for i in range(3, 3 + VOCABULARY - SKILL - len(TASK_NAMES))),
)  # fmt: skip

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- set role = {'system': 'system', 'developer': 'system', 'assistant': 'assistant'}[message['role']]"
    " | default('user', true) -%}"
    "{{- '<|' + role + '|>' + (message['content'] or '') + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def encode(example: Example) -> tuple[list[int], int]:
    """Return the token ids of the whole conversation with the closing <|end|>, and the length of the prompt."""
    ids: list[int] = []
    if example.skill is not None:
        ids += (SYSTEM, SKILL + example.skill, END)
    elif example.system is not None:
        ids += (SYSTEM, *example.system.encode(), END)
    for text, answer in example.turns:
        ids += (USER, *text.encode(), END, ASSISTANT, *answer.encode(), END)
    ids += (USER, *example.text.encode(), END, ASSISTANT)
    prompt = len(ids)
    ids += (*example.answer.encode(), END)
    return ids, prompt


def _byte_letters() -> dict[str, int]:
    # The table of byte-level BPE: printable bytes map to themselves, the others to letters from U+0100 on.
    displayed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in displayed]
    letters = {chr(byte): byte for byte in displayed} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
    return dict(sorted(letters.items(), key=lambda item: item[1]))


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja for transformers and vLLM."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": PAD + i, "content": text, **special} for i, text in enumerate(SPECIALS)]
    model: dict[str, object] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": _byte_letters(), "merges": []}  # fmt: skip
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
             "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|pad|>",
              "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT, "padding_side": "left",
              "chat_template": CHAT_TEMPLATE}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
