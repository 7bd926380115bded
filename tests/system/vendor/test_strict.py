"""The faults that strict validation must find."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import ResponseStreamEvent

from tests.system.vendor.strict import faults

CHOICE: dict[str, Any] = {
    "index": 0,
    "message": {"role": "assistant", "content": "hi", "refusal": None},
    "logprobs": None,
    "finish_reason": "stop",
}
WHOLE: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [CHOICE]}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ""),
        ({"service_tier": None}, ""),
        ({"usage": None}, "$.usage (CompletionUsage): None is not of type 'object'"),
        ({"system_fingerprint": None}, "$.system_fingerprint (): None is not of type 'string'"),
        ({"created": "1"}, "'1' is not of type 'integer'"),
        ({"object": "chat"}, "'chat.completion' was expected"),
        ({"nonsense": 1}, "'nonsense' was unexpected"),
        ({"choices": [{**CHOICE, "finish_reason": "done"}]}, "$.choices[0].finish_reason"),
        (
            {"choices": [{"index": 0, "message": CHOICE["message"], "finish_reason": "stop"}]},
            "'logprobs' is a required",
        ),
        ({"choices": [{**CHOICE, "message": {"role": "assistant", "content": "hi"}}]}, "'refusal' is a required"),
    ],
)
def test_nulls_absence_types_literals_and_unknown_fields_are_faults(more: dict[str, Any], words: str) -> None:
    messages = faults(ChatCompletion, {**WHOLE, **more})
    assert len(messages) == bool(words)
    assert words in "".join(messages)


def test_the_fault_is_that_of_the_event_that_fits_best() -> None:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": None}
    event = {"type": "response.content_part.added", "item_id": "i", "output_index": 0, "sequence_number": 1}
    (fault,) = faults(ResponseStreamEvent, {**event, "content_index": 0, "part": part})
    assert fault.startswith("$.part.logprobs")
