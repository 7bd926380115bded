"""Bytes of tokens that are parts of characters, in the logprobs of vLLM's handlers."""

from types import SimpleNamespace
from typing import Any

import pytest

from models.chat.vllm.answers import token_bytes
from models.chat.vllm.answers.token_bytes import TokenBytes
from tests.contract.vllm.answers.test_whole import tokenizer

pytestmark = pytest.mark.real
TEXT = "aé 中"


class ByteFallback:
    """A tokenizer that writes bytes as `<0xE4>`, as those of SentencePiece do."""

    def convert_ids_to_tokens(self, token: int) -> str:
        return ["▁hello", "<0xE4>", "<s>"][token]


def logprobs(tokens: list[int]) -> list[dict[int, Any]]:
    from vllm.logprobs import Logprob

    return [{token: Logprob(-0.1, 1, ""), 0: Logprob(-2.0, 2, "")} for token in tokens]


@pytest.mark.parametrize("name", ["openai_serving_chat", "openai_serving_responses"])
def test_a_part_of_a_character_has_its_own_bytes(name: str) -> None:
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses

    is_chat = name == "openai_serving_chat"
    handler: Any = object.__new__(OpenAIServingChat if is_chat else OpenAIServingResponses)
    handler.return_tokens_as_token_ids = False
    token_bytes.patch(SimpleNamespace(**{name: handler}))
    tokens = tokenizer().encode(TEXT)
    named: dict[str, Any] = {"token_ids": tokens, "tokenizer": tokenizer()}
    if is_chat:
        entries = handler._create_chat_logprobs(
            top_logprobs=logprobs(tokens), num_output_top_logprobs=2, **named
        ).content
    else:
        entries = handler._create_response_logprobs(logprobs=logprobs(tokens), top_logprobs=2, **named)
    assert [entry.bytes for entry in entries] == [[byte] for byte in TEXT.encode()]
    assert all(entry.top_logprobs[0].bytes == entry.bytes for entry in entries)
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_other_tokens_have_the_bytes_of_their_text() -> None:
    of_token = TokenBytes(ByteFallback())
    assert [of_token(token) for token in range(3)] == [None, b"\xe4", None]
    added = tokenizer().convert_tokens_to_ids("<think>")
    assert TokenBytes(tokenizer())(added) is None
