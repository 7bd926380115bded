"""Lists of a hundred thousand faults are refused at the first one, without blocking the loop that feeds all streams."""

from typing import Any

import pytest
from pydantic import ValidationError

from registry.errors import RoundhouseError
from tests.contract.chat.nasty import CHAT, HELLO, MESSAGES, RESPONSES, TEXT
from tests.contract.chat_engine.bench import Bench
from tests.processor_time import processor_time

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]
BOMBS: dict[str, tuple[str, dict[str, Any]]] = {
    "an input that is an object": (RESPONSES, {"input": {str(i): i for i in range(20_000)}}),
    "items that are numbers": (RESPONSES, {"input": [1] * 500}),
    "items that lack everything": (RESPONSES, {"input": [{"type": "function_call"}] * 500}),
    "parts that are none": (RESPONSES, {"input": [{"role": "user", "content": [{"type": "zz"}] * 20_000}]}),
    "includes": (RESPONSES, {"input": "x", "include": ["zz"] * 100_000}),
    "parts that are numbers": (CHAT, {"messages": [{"role": "user", "content": [7] * 200_000}]}),
    "such parts, and a message that is none": (CHAT, {"messages": [{"role": "user", "content": [7] * 200_000}, 5]}),
    "messages that are an object": (CHAT, {"messages": {str(i): i for i in range(20_000)}}),
    "stops by words": (CHAT, {"messages": HELLO, "stop_token_ids": ["x"] * 150_000}),
    "bad words that are numbers": (CHAT, {"messages": HELLO, "bad_words": [1] * 300_000}),
    "a prompt of fractions": (TEXT, {"prompt": [1.5] * 200_000}),
    "blocks that are none": (MESSAGES, {"max_tokens": 4, "messages": [{"role": "user", "content": [{}] * 100_000}]}),
}
CPU_SECONDS = 2.0
"""Most CPU seconds of the slot's process for one list. Each took 1 to 32 before, and takes less than 0.1 now."""


@pytest.mark.parametrize("name", BOMBS)
async def test_a_list_of_faults_is_refused_at_the_first_one(bench: Bench, name: str) -> None:
    path, body = BOMBS[name]
    with processor_time() as seconds:
        try:
            status = (await bench.ask(path, body)).status
        except RoundhouseError as error:
            status = error.status
        assert 400 <= status < 500
        assert seconds() < CPU_SECONDS
    assert bench.unfinished() == 0


async def test_one_fault_of_a_list_is_reported(bench: Bench) -> None:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    with pytest.raises(ValidationError) as reported:
        ResponsesRequest.model_validate({"model": "m", "input": [{"type": "zz"}] * 100})
    assert reported.value.error_count() < 1_000
