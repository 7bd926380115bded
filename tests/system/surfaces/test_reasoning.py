"""A model that thinks and calls tools: the results of its recipe's parsers in all three APIs."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ollama
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI

from tests.eventually import PATIENCE, eventually
from tests.system.serving import PATIENT, Server
from tests.system.surfaces.thinking import BOTH, FUNCTIONS, SCRIPTS, SUM, TOOLS

pytestmark = pytest.mark.real
THOUGHT = "Two, and two more: four."
CALLS = [("set_light", {"state": "on"}), ("set_fan", {"speed": 2})]


@pytest.fixture(scope="module")
def client(thinker: Server) -> Iterator[OpenAI]:
    settings: Any = {"timeout": PATIENCE, "max_retries": 0, "default_headers": PATIENT}
    with OpenAI(base_url=f"{thinker.url}/v1", api_key="none", **settings) as client:
        yield client


@pytest.fixture(scope="module")
def claude(thinker: Server) -> Iterator[Anthropic]:
    settings: Any = {"timeout": PATIENCE, "max_retries": 0, "default_headers": PATIENT}
    with Anthropic(base_url=thinker.url, api_key="none", **settings) as client:
        yield client


def chat(client: OpenAI, question: str = SUM, **more: Any) -> Any:
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(**{"model": "thinker", "messages": messages, "temperature": 0, **more})


def test_thoughts_are_a_field_of_their_own(client: OpenAI) -> None:
    answer = chat(client)
    message = answer.choices[0].message
    assert (message.reasoning, message.content) == (THOUGHT, "It is 4.")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(SCRIPTS[SUM]) + 1  # the marks and the end are tokens, too
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3


def test_thoughts_in_a_stream(client: OpenAI) -> None:
    def came_in_pieces() -> bool:
        fields: list[tuple[str, str]] = []
        usage: Any = None
        for chunk in chat(client, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage
            for choice in chunk.choices:
                for name in ("reasoning", "content"):
                    if text := getattr(choice.delta, name, None):
                        fields.append((name, text))
        order = [name for name, _ in fields]
        assert order == sorted(order, reverse=True)  # no thinking after the first word of the answer
        assert "".join(text for name, text in fields if name == "reasoning") == THOUGHT
        assert "".join(text for name, text in fields if name == "content") == "It is 4."
        assert usage.completion_tokens == len(SCRIPTS[SUM]) + 1
        assert usage.completion_tokens_details.reasoning_tokens == 3
        return order.count("reasoning") > 1

    eventually(came_in_pieces)  # a client that reads late, as on a busy machine, gets several tokens in one event


def test_thoughts_in_many_streams_at_once(client: OpenAI) -> None:
    """Under load, several tokens come in one event, including marks. Then the parser deepseek_r1 lets `<think>`
    through, in 8 of 300 streams like these, 24 at a time."""

    def thought(number: int) -> tuple[str, str]:
        question = (SUM, BOTH)[number % 2]
        deltas = [choice.delta for chunk in chat(client, question, stream=True) for choice in chunk.choices]
        return question, "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)

    with ThreadPoolExecutor(24) as pool:
        assert Counter(pool.map(thought, range(72))) == {(SUM, THOUGHT): 36, (BOTH, "Two calls."): 36}


def test_an_answer_cut_off_in_thought_has_no_content(client: OpenAI) -> None:
    choice = chat(client, max_tokens=3).choices[0]
    assert (choice.message.reasoning, choice.message.content) == ("Two, and two ", None)
    assert choice.finish_reason == "length"


def test_what_bounds_and_hides_thoughts(client: OpenAI) -> None:
    short = chat(client, extra_body={"thinking_token_budget": 1}).choices[0].message
    assert (short.reasoning, short.content) == ("Two, ", "It is 4.")
    hidden = chat(client, extra_body={"include_reasoning": False}).choices[0].message
    assert (getattr(hidden, "reasoning", None), hidden.content) == (None, "It is 4.")


def test_a_schema_binds_the_answer_and_not_the_thoughts(client: OpenAI) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [17]}, "strict": True}}
    message = chat(client, response_format=shape).choices[0].message
    assert (message.reasoning, message.content) == (THOUGHT, "17")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_may_come_back_in_the_conversation(client: OpenAI, name: str) -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", name: "z"}]
    answer = chat(client, messages=[*turns, {"role": "user", "content": SUM}])
    assert answer.choices[0].message.content == "It is 4."


# --- thoughts and parallel calls, which the model makes by itself --------------------------------------------------
def test_calls_after_thoughts(client: OpenAI) -> None:
    choice = chat(client, BOTH, tools=TOOLS).choices[0]
    message = choice.message
    assert (message.reasoning, message.content, choice.finish_reason) == ("Two calls.", "Doing both.", "tool_calls")
    assert [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls] == CALLS
    one = chat(client, BOTH, tools=TOOLS, parallel_tool_calls=False).choices[0].message
    assert [call.function.name for call in one.tool_calls] == ["set_light"]


def test_calls_after_thoughts_in_a_stream(client: OpenAI) -> None:
    text = {"reasoning": "", "content": ""}
    calls: dict[int, list[str]] = {}
    finish = None
    for chunk in chat(client, BOTH, tools=TOOLS, stream=True):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for name in text:
                text[name] += getattr(choice.delta, name, None) or ""
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, ["", ""])
                call[0] += part.function.name or ""
                call[1] += part.function.arguments or ""
    assert (text, finish) == ({"reasoning": "Two calls.", "content": "Doing both."}, "tool_calls")
    assert [(name, json.loads(arguments)) for _, (name, arguments) in sorted(calls.items())] == CALLS


# --- the other dialects --------------------------------------------------------------------------------------------
def test_responses_have_reasoning_items(client: OpenAI) -> None:
    tools: Any = [{"type": "function", **function} for function in FUNCTIONS]
    answer = client.responses.create(model="thinker", input=SUM, temperature=0)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    reasoning: Any = answer.output[0]
    assert [part.text for part in reasoning.content] == [THOUGHT]
    assert answer.output_text == "It is 4."
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == 3
    called: Any = client.responses.create(model="thinker", input=BOTH, temperature=0, tools=tools).output
    assert [item.type for item in called] == ["reasoning", "message", "function_call", "function_call"]
    assert [(item.name, json.loads(item.arguments)) for item in called[2:]] == CALLS


def test_responses_stream_reasoning_events(client: OpenAI) -> None:
    text: dict[str, str] = {}
    with client.responses.stream(model="thinker", input=SUM, temperature=0) as stream:
        for event in stream:
            if event.type in ("response.reasoning_text.delta", "response.output_text.delta"):
                text[event.type] = text.get(event.type, "") + event.delta
        final = stream.get_final_response()
    assert text == {"response.reasoning_text.delta": THOUGHT, "response.output_text.delta": "It is 4."}
    assert [item.type for item in final.output] == ["reasoning", "message"]


def test_messages_have_thinking_blocks(claude: Anthropic) -> None:
    requested: Any = {"model": "thinker", "max_tokens": 1500, "extra_body": {"temperature": 0}}
    requested["messages"] = [{"role": "user", "content": SUM}]
    answer: Any = claude.messages.create(**requested, thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert (answer.content[0].thinking, answer.content[1].text) == (THOUGHT, "It is 4.")
    assert answer.content[0].signature
    assert answer.usage.output_tokens == len(SCRIPTS[SUM]) + 1
    turns = [*requested["messages"], {"role": "assistant", "content": [block.to_dict() for block in answer.content]}]
    turns += [{"role": "user", "content": SUM}]
    assert [block.type for block in claude.messages.create(**{**requested, "messages": turns}).content][-1] == "text"
    blocks: list[str] = []
    text = {"thinking_delta": "", "text_delta": ""}
    for event in claude.messages.create(**requested, stream=True):
        if event.type == "content_block_start":
            blocks.append(event.content_block.type)
        elif event.type == "content_block_delta" and event.delta.type in text:
            delta: Any = event.delta
            text[delta.type] += delta.thinking if delta.type == "thinking_delta" else delta.text
    assert blocks == ["thinking", "text"]
    assert text == {"thinking_delta": THOUGHT, "text_delta": "It is 4."}


def test_messages_call_tools_after_thoughts(claude: Anthropic) -> None:
    tools: Any = [{"name": function["name"], "input_schema": function["parameters"]} for function in FUNCTIONS]
    question: Any = [{"role": "user", "content": BOTH}]
    answer: Any = claude.messages.create(
        model="thinker", max_tokens=100, messages=question, tools=tools, extra_body={"temperature": 0}
    )
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [(block.name, block.input) for block in answer.content[2:]] == CALLS
    assert answer.stop_reason == "tool_use"


def test_a_recipe_may_have_deepseeks_field(client: OpenAI) -> None:
    message = chat(client, model="deepseeks").choices[0].message
    assert (message.reasoning_content, getattr(message, "reasoning", None)) == (THOUGHT, None)
    deltas = [choice.delta for chunk in chat(client, model="deepseeks", stream=True) for choice in chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == THOUGHT
    assert not any(getattr(delta, "reasoning", None) for delta in deltas)


# --- without parsers: last, since the other model leaves for this one ----------------------------------------------
def test_without_parsers_thoughts_are_content_and_tools_are_refused(client: OpenAI) -> None:
    message = chat(client, model="plain").choices[0].message
    assert (getattr(message, "reasoning", None), message.content) == (None, f"<think>{THOUGHT}</think>It is 4.")
    with pytest.raises(BadRequestError, match="tool"):
        chat(client, BOTH, model="plain", tools=TOOLS)
    unparsed = chat(client, BOTH, model="plain", tools=TOOLS, tool_choice="none").choices[0].message
    assert unparsed.content.count("<tool_call>") == 2


def test_ollamas_client_gets_reasoning_and_calls(thinker: Server) -> None:
    """There a call's arguments are an object, which is complete even in a stream."""
    client = ollama.Client(host=thinker.url, timeout=PATIENCE, headers=PATIENT)
    requested: Any = [{"role": "user", "content": BOTH}]
    thought = client.chat("thinker", [{"role": "user", "content": SUM}], think=True, options={"temperature": 0})
    assert (thought.message.thinking, thought.message.content) == (THOUGHT, "It is 4.")
    begun = [{"role": "user", "content": SUM}, {"role": "assistant", "content": "It is "}]
    for think in (None, True):
        rest = client.chat("thinker", begun, think=think, options={"temperature": 0}).message
        assert (rest.thinking, rest.content) == (None, "4.")
    whole = client.chat("thinker", requested, tools=TOOLS, options={"temperature": 0})
    parts = list(client.chat("thinker", requested, tools=TOOLS, stream=True, options={"temperature": 0}))
    for messages in ([whole.message], [part.message for part in parts]):
        calls = [call.function for message in messages for call in message.tool_calls or ()]
        assert [(call.name, call.arguments) for call in calls] == CALLS
        assert "".join(message.thinking or "" for message in messages) == "Two calls."
        assert "".join(message.content or "" for message in messages).strip() == "Doing both."
    results = [{"role": "tool", "content": "done", "tool_name": name} for name, _ in CALLS]
    after = client.chat("thinker", [*requested, whole.message, *results], tools=TOOLS, options={"num_predict": 4})
    assert after.done
    assert set(client.show("thinker").capabilities or ()) == {"completion", "thinking", "tools"}
    with pytest.raises(ollama.ResponseError, match="does not support thinking"):
        client.chat("plain", requested, think=True)
