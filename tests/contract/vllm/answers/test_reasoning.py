"""Answers to prompts that already end the reasoning, as vLLM splits them with and without our patch."""

from typing import Any

import pytest

from models.chat.vllm import handlers

pytestmark = pytest.mark.real
THOUGHT, NONE = "It is 4.", "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(mark, normalized=False) for mark in ("<think>", "</think>", "<|im_start|>")])
    return PreTrainedTokenizerFast(tokenizer_object=made)


def split(tokenizer: Any, name: str, prompt: str, answer: str, *, alone: bool = False) -> tuple[Any, Any, Any]:
    """Return reasoning and text of an answer in one piece, and of its stream. alone: by unpatched vLLM."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    theirs: Any = ParserManager.get_parser(reasoning_parser_name=name, tokenizer=tokenizer)
    kind = theirs if alone else handlers.prompt_aware(theirs)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}])
    requested, stated = tokenizer.encode(prompt), tokenizer.encode(answer)
    parser = kind(tokenizer)
    parser.set_prompt_token_ids(requested)
    thought, words, _ = parser.parse(answer, request, model_output_token_ids=stated)
    streamed, parser, before = ["", ""], kind(tokenizer), ""
    for i, token in enumerate(stated):
        after = tokenizer.decode(stated[: i + 1])
        piece = parser.parse_delta(after[len(before) :], [token], request, requested, finished=i + 1 == len(stated))
        streamed[0] += (piece and piece.reasoning) or ""
        streamed[1] += (piece and piece.content) or ""
        before = after
    return thought, words, (streamed[0], streamed[1])


def test_unpatched_vllm_takes_the_answer_for_reasoning(tokenizer: Any) -> None:
    """But not in a stream. If this fails, the patch can go."""
    assert split(tokenizer, "qwen3", NONE, THOUGHT, alone=True) == (THOUGHT, None, ("", THOUGHT))


@pytest.mark.parametrize("name", ["qwen3", "glm45", "nemotron_v3", "minimax_m2", "kimi_k2"])
@pytest.mark.parametrize(
    ("prompt", "answer", "thought", "words"),
    [
        (
            NONE,
            THOUGHT,
            "",
            THOUGHT,
        ),  # small Qwen3.5, and SmolLM3 after /no_think, whose templates write it without a field of the request
        ("<think>\n", f"Hm.</think>{THOUGHT}", "Hm.", THOUGHT),
        ("", f"<think>Hm.</think>{THOUGHT}", "Hm.", THOUGHT),
        ("", "Hm.", "Hm.", ""),
    ],
)
def test_an_answer_is_split_as_its_stream_is(
    tokenizer: Any, name: str, prompt: str, answer: str, thought: str, words: str
) -> None:
    assert split(tokenizer, name, prompt, answer) == (thought or None, words or None, (thought, words))


def test_reasoning_of_an_earlier_turn_does_not_end_that_of_this_one(tokenizer: Any) -> None:
    found = split(tokenizer, "qwen3", f"{NONE}A.<|im_start|>user<|im_start|>", f"<think>Hm.</think>{THOUGHT}")
    assert found == ("Hm.", THOUGHT, ("Hm.", THOUGHT))
