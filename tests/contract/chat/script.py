"""A Llama with scripted answers: a hand-made checkpoint, for answers that no starter model gives.

It has one layer and no training. Embeddings of tokens are one-hot, and `lm_head` adds two tables: which tokens may
follow the last one, and, with less weight, which belong to the question's answer. Uniform attention (queries and
keys are 0) brings the question to every position. So the greedy answer to a question is its script, token by token,
even if scripts share tokens such as `</think>`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch

HIDDEN, HEADS = 512, 8
SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>")
MARKS = ("<think>", "</think>")
"""Ordinary tokens, as in reasoning models, so that they stay in the text for the parser."""
WEAK = 0.5
TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>' + (message['content'] or '') -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
Scripts = Mapping[str, Sequence[str]]
"""Question to the pieces of its answer. Each piece is one token, and may only come once within an answer."""


def write_script(
    folder: Path, scripts: Scripts, context: int = 1024, per_token: int = 1, certainty: float = 1.0
) -> Path:
    """Write a checkpoint of these scripts. Other text gets the first script as its answer.

    If a prompt has several questions, as a conversation has, the answer is that of the one last in `scripts`.

    Args:
        per_token: bytes of other text for each token. More than one loses the text, but saves time with the long
            instructions of coding agents.
        certainty: factor of the logits. A million gives the script at any temperature.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = _write_tokenizer(folder, scripts, per_token)
    config = LlamaConfig(
        vocab_size=HIDDEN - HEADS * 8, hidden_size=HIDDEN, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=context,
        tie_word_embeddings=False, eos_token_id=tokens["<|end|>"],
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.float32)
    _write_weights(model, tokens, scripts)
    with torch.no_grad():
        dict(model.named_parameters())["model.norm.weight"].mul_(certainty)
    model.save_pretrained(folder)
    return folder


def _write_tokenizer(folder: Path, scripts: Scripts, per_token: int) -> dict[str, int]:
    """Write a tokenizer with one token per byte, per piece and per question. Returns all but the bytes."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    if per_token > 1:
        tokenizer.normalizer = normalizers.Replace(Regex(rf"[\s\S]{{1,{per_token}}}"), ".")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    pieces = dict.fromkeys([*MARKS, *scripts, *(piece for answer in scripts.values() for piece in answer)])
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in pieces])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return {text: tokenizer.token_to_id(text) for text in [*SPECIAL, *pieces]}


def _write_weights(model: torch.nn.Module, tokens: dict[str, int], scripts: Scripts) -> None:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        embedding, head = parameters["model.embed_tokens.weight"], parameters["lm_head.weight"]
        value = parameters["model.layers.0.self_attn.v_proj.weight"]
        output = parameters["model.layers.0.self_attn.o_proj.weight"]
        vocabulary = len(embedding)
        embedding[:, :vocabulary] = torch.eye(vocabulary)
        for number, (question, pieces) in enumerate(scripts.items()):
            topic = vocabulary + number
            later = (number + 1) / len(scripts)
            value[number, tokens[question]] = later / HIDDEN**0.5  # relative to a one after the norm
            output[topic, number] = 1.0
            script = [tokens[text] for text in ("<|assistant|>", *pieces, "<|end|>")]
            assert len(set(script)) == len(script), f"a piece comes twice in the answer to {question!r}"
            for before, after in pairwise(script):
                head[after, before] = 1.0
                head[after, topic] = WEAK
