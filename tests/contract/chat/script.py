"""A Llama that says what it was told: a hand-made checkpoint, so that texts which no starter model gives are known.

One layer, no training. A token's embedding is a one of its own, and `lm_head` adds two tables: what may follow the last
token, and, weaker, what belongs to the answer of the question. The question reaches every place by attention that looks
at all tokens alike (queries and keys are 0). So a greedy answer is the script of its question, token by token, also
where scripts share tokens such as `</think>`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch

HIDDEN, HEADS = 512, 8
SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>")
MARKS = ("<think>", "</think>")
"""Tokens that are no special ones, as in the models that think: they stay in the text for the parser."""
WEAK = 0.5
TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>' + (message['content'] or '') -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
Scripts = Mapping[str, Sequence[str]]
"""Question to the pieces of its answer. Each piece is one token; within an answer none may come twice."""


def write_script(
    folder: Path, scripts: Scripts, context: int = 1024, per_token: int = 1, certainty: float = 1.0
) -> Path:
    """Write the checkpoint of these scripts; other text is answered with the first script.

    Where a prompt holds several questions, as a conversation does, the last of `scripts` is answered.

    Args:
        per_token: bytes of other text to a token. With more than one the text itself is lost, which spares the time of
            the long instructions of a coding agent.
        certainty: factor of the logits; a million makes an answer the script's whatever the temperature.
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
    """One token per byte, per piece and per question. Returns all but the bytes."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    if per_token > 1:
        tokenizer.normalizer = normalizers.Replace(Regex(rf"[\s\S]{{1,{per_token}}}"), ".")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    pieces = dict.fromkeys([*MARKS, *scripts, *(piece for stated in scripts.values() for piece in stated)])
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
            value[number, tokens[question]] = later / HIDDEN**0.5  # of what the norm makes of a one
            output[topic, number] = 1.0
            stated = [tokens[text] for text in ("<|assistant|>", *pieces, "<|end|>")]
            assert len(set(stated)) == len(stated), f"a piece comes twice in the answer to {question!r}"
            for before, after in pairwise(stated):
                head[after, before] = 1.0
                head[after, topic] = WEAK
