"""Our answers are accepted in the next request's history: as they were sent, and as the SDKs write them."""

from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types import Message
from cohere.v2.types import V2ChatResponse, V2ChatStreamResponse
from ollama import ChatResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from tests.system.serving import Server
from tests.system.surfaces.thinking import BOTH, FUNCTIONS, SUM
from tests.system.surfaces.thinking import TOOLS as CALLED
from tests.system.vendor import asking
from tests.system.vendor.strict import faults

pytestmark = pytest.mark.real
Json = dict[str, Any]
RESULT = "21 degrees"
FLAT = [{"type": "function", **function} for function in FUNCTIONS]
ANTHROPICS = [{"name": function["name"], "input_schema": function["parameters"]} for function in FUNCTIONS]
WORDS = {"text": "hello", "thoughts": SUM, "thoughts and calls": BOTH}
FORMS: dict[str, Callable[[Any], Any]] = {
    "as sent": lambda answer: answer.sent,
    "to_dict": lambda answer: answer.model.model_dump(mode="json", exclude_unset=True),
    "model_dump": lambda answer: answer.model.model_dump(mode="json"),
}
"""Forms of an answer. The last one has all fields, null where the answer has none."""


class SentAnswer:
    """An answer as it was sent, and as the SDK's model."""

    def __init__(self, kind: type[BaseModel], sent: Json) -> None:
        self.sent, self.model = sent, kind.model_validate(sent)


def user(text: str) -> Json:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WORDS)
def test_a_chat_completion_is_accepted_as_history(thinker: Server, name: str, form: str) -> None:
    body: Json = {"model": "thinker", "temperature": 0, "tools": CALLED}
    messages = [user(WORDS[name])]
    answer = SentAnswer(
        ChatCompletion, asking.whole(thinker.http, "/v1/chat/completions", {**body, "messages": messages})
    )
    message = FORMS[form](answer)["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in message.get("tool_calls") or ()
    ]
    assert bool(results) == name.endswith("calls")
    messages += [message, *results, user("go on")]
    asking.whole(thinker.http, "/v1/chat/completions", {**body, "messages": messages, "max_tokens": 2})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WORDS)
def test_a_response_is_accepted_as_history(thinker: Server, name: str, form: str) -> None:
    body: Json = {"model": "thinker", "temperature": 0, "tools": FLAT, "input": [user(WORDS[name])]}
    answer = SentAnswer(Response, asking.whole(thinker.http, "/v1/responses", body))
    last = asking.events(thinker.http, "/v1/responses", body)[-1]["response"]
    for response in (answer, SentAnswer(Response, last)):
        output = FORMS[form](response)["output"]
        calls = [item["call_id"] for item in output if item["type"] == "function_call"]
        assert bool(calls) == name.endswith("calls")
        results = [{"type": "function_call_output", "call_id": call, "output": RESULT} for call in calls]
        history = [*body["input"], *output, *results, user("go on")]
        asking.whole(thinker.http, "/v1/responses", {**body, "input": history, "max_output_tokens": 2})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WORDS)
def test_a_message_is_accepted_as_history(thinker: Server, name: str, form: str) -> None:
    body: Json = {"model": "thinker", "temperature": 0, "tools": ANTHROPICS, "max_tokens": 1500}
    messages = [user(WORDS[name])]
    answer = SentAnswer(Message, asking.whole(thinker.http, "/v1/messages", {**body, "messages": messages}))
    content = FORMS[form](answer)["content"]
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    assert bool(calls) == name.endswith("calls")
    results: list[Json] = [{"type": "tool_result", "tool_use_id": call, "content": RESULT} for call in calls]
    turns = [{"role": "assistant", "content": content}, {"role": "user", "content": [*results, text("go on")]}]
    asking.whole(thinker.http, "/v1/messages", {**body, "messages": messages + turns, "max_tokens": 2})


def text(words: str) -> Json:
    return {"type": "text", "text": words}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WORDS)
def test_an_answer_of_ollamas_api_is_accepted_as_history(thinker: Server, name: str, form: str) -> None:
    body: Json = {"model": "thinker", "tools": CALLED, "stream": False, "options": {"temperature": 0}}
    messages = [user(WORDS[name])]
    answer = SentAnswer(ChatResponse, asking.whole(thinker.http, "/api/chat", {**body, "messages": messages}))
    message = FORMS[form](answer)["message"]
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    assert bool(calls) == name.endswith("calls")
    results = [{"role": "tool", "tool_name": call, "content": RESULT} for call in calls]
    messages += [message, *results, user("go on")]
    asking.whole(thinker.http, "/api/chat", {**body, "messages": messages, "options": {"num_predict": 2}})


@pytest.mark.parametrize("name", WORDS)
def test_an_answer_of_coheres_api_is_accepted_as_history(thinker: Server, name: str) -> None:
    """Also checks that whole and streamed answers agree, strictly by the types of the package."""
    body: Json = {"model": "thinker", "temperature": 0, "tools": CALLED, "messages": [user(WORDS[name])]}
    whole = asking.whole(thinker.http, "/v2/chat", body)
    assert faults(V2ChatResponse, whole) == []
    events = asking.events(thinker.http, "/v2/chat", body)
    for event in events:
        assert faults(V2ChatStreamResponse, event) == []
    message = whole["message"]
    calls = message.get("tool_calls", [])
    assert bool(calls) == name.endswith("calls")
    assert whole["finish_reason"] == events[-1]["delta"]["finish_reason"] == ("TOOL_CALL" if calls else "COMPLETE")
    deltas = [event["delta"]["message"] for event in events if event["type"] == "content-delta"]
    for kind in ("text", "thinking"):
        streamed = "".join(delta["content"].get(kind, "") for delta in deltas)
        assert streamed == "".join(part.get(kind, "") for part in message.get("content", ()))
    called = [event["delta"]["message"]["tool_calls"] for event in events if event["type"] == "tool-call-start"]
    assert [call["function"]["name"] for call in called] == [call["function"]["name"] for call in calls]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls]
    parsed = V2ChatResponse.model_validate(whole).message
    for turn in (message, parsed.model_dump(mode="json")):
        messages = [*body["messages"], turn, *results, user("go on")]
        asking.whole(thinker.http, "/v2/chat", {**body, "messages": messages, "max_tokens": 2})


REFUSALS: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": None, "refusal": "I cannot."}]}),
    "chat, a part": (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}]},
    ),
    "responses": (
        "/v1/responses",
        {
            "input": [
                {
                    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                    "content": [{"type": "refusal", "refusal": "I cannot."}],
                }
            ]
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_of_other_models(thinker: Server, name: str) -> None:
    path, body = REFUSALS[name]
    ((field, history),) = body.items()
    limit = {"max_output_tokens": 2} if field == "input" else {"max_tokens": 2}
    asking.whole(thinker.http, path, {"model": "thinker", field: [user("a"), *history, user("b")], **limit})
