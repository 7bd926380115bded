"""Chat by the vendors' own clients on the starter model: what clients use, and what is refused."""

import json
import re
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.system.tools import CALLS, HELLO, LIGHT, MODEL, SAYS_CALLS, TOOLS

pytestmark = pytest.mark.real


def chat(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": HELLO, "temperature": 0, **more})


def test_the_engine_names_its_request_by_the_clients_id(client: OpenAI) -> None:
    for _ in range(2):  # the same id twice is two requests
        assert chat(client, max_tokens=1, extra_headers={"X-Request-Id": "mine-1"}).id.startswith("chatcmpl-mine-1-")


# --- tools ---------------------------------------------------------------------------------------------------------
def called(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def test_parallel_calls_by_the_recipes_parser(client: OpenAI) -> None:
    choice = chat(client, tools=TOOLS, extra_body=SAYS_CALLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert called(choice.message) == [("set_light", {"state": "on"}), ("set_fan", {"speed": 2})]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    one = chat(client, tools=TOOLS, parallel_tool_calls=False, extra_body=SAYS_CALLS).choices[0]
    assert called(one.message) == [("set_light", {"state": "on"})]
    plain = chat(client, tools=TOOLS, tool_choice="none", extra_body=SAYS_CALLS).choices[0]
    assert (plain.message.content, plain.message.tool_calls) == (CALLS, None)


def test_calls_in_a_stream(client: OpenAI) -> None:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    finish = None
    for chunk in chat(client, tools=TOOLS, stream=True, extra_body=SAYS_CALLS):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or []:
                if part.function.name:
                    names[part.index] = part.function.name
                arguments[part.index] = arguments.get(part.index, "") + (part.function.arguments or "")
    assert [(names[i], json.loads(arguments[i])) for i in sorted(names)] == [
        ("set_light", {"state": "on"}), ("set_fan", {"speed": 2}),
    ]  # fmt: skip
    assert finish == "tool_calls"


@pytest.mark.parametrize("name", ["set_light", "set_fan"])
def test_a_named_tool_must_be_called(client: OpenAI, name: str) -> None:
    choice = chat(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}}).choices[0]
    [(reported, arguments)] = called(choice.message)
    assert reported == name
    assert arguments["state"] in ("on", "off") if name == "set_light" else arguments["speed"] in (1, 2, 3)


def test_some_tool_must_be_called(client: OpenAI) -> None:
    choice = chat(client, tools=TOOLS, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"  # without a limit: the model, which knows no tools, would never stop
    assert choice.message.tool_calls
    assert all(name in ("set_light", "set_fan") and arguments for name, arguments in called(choice.message))


@pytest.mark.parametrize("name", ["set_light", "set_fan"])
def test_only_an_allowed_tool_is_called(client: OpenAI, name: str) -> None:
    allowed: Any = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
    choice = chat(client, tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).choices[0]
    assert {reported for reported, _ in called(choice.message)} == {name}


def read(stream: Any) -> tuple[str, list[tuple[str, Any]], str | None]:
    """Return content, calls and finish reason of a stream."""
    content, calls, finish = "", [], None
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            calls += [
                (call.function.name, json.loads(call.function.arguments)) for call in choice.delta.tool_calls or []
            ]
            finish = choice.finish_reason or finish
    return content, calls, finish


@pytest.mark.parametrize(
    "text",
    ["[the page](http://a.example) says so", "[1, 2, 3]", '[set_light("on")]', "[set_light(state='on')] done <t"],
)
def test_what_only_looks_like_a_call_is_text(client: OpenAI, text: str) -> None:
    requested: Any = {"tools": TOOLS, "extra_body": {"structured_outputs": {"choice": [text]}}}
    choice = chat(client, **requested).choices[0]
    streamed = read(chat(client, stream=True, **requested))
    assert streamed == (choice.message.content, called(choice.message), choice.finish_reason)
    assert choice.message.content == text.removeprefix("[set_light(state='on')]")
    assert len(called(choice.message)) == ("state=" in text)


@pytest.mark.parametrize(("tokens", "whole"), [(230, 4), (30, 0)])
def test_required_calls_that_are_cut_come_as_far_as_they_are_whole(client: OpenAI, tokens: int, whole: int) -> None:
    requested: Any = {"tools": TOOLS[:1], "tool_choice": "required", "max_tokens": tokens}
    choice = chat(client, **requested).choices[0]
    assert choice.finish_reason == "length"
    assert called(choice.message) == [("set_light", {"state": "on"})] * whole
    assert "set_light" in choice.message.content  # the call that was cut
    assert read(chat(client, stream=True, **requested)) == (choice.message.content, called(choice.message), "length")
    response = client.responses.create(
        model=MODEL, input="hello", temperature=0, tool_choice="required", max_output_tokens=tokens,
        tools=[{"type": "function", "name": "set_light", "parameters": LIGHT, "strict": True}],
    )  # fmt: skip
    assert response.status == "incomplete"
    assert [item.type for item in response.output].count("function_call") == whole
    assert response.output_text == choice.message.content


def test_results_of_tools_go_back_into_the_conversation(client: OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "set_light", "arguments": '{"state": "on"}'}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    assert chat(client, messages=turns, tools=TOOLS).choices[0].message.content


# --- shapes and sampling -------------------------------------------------------------------------------------------
class Person(BaseModel):
    name: str
    age: int
    mood: Literal["good", "bad"]


def test_a_json_schema_is_kept_to(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="extract-json",
        messages=[{"role": "user", "content": "alice is 30 years old and lives in paris"}],
        temperature=0,
        response_format=Person,
    )
    person = answer.choices[0].message.parsed
    assert person is not None
    assert (person.name, person.age) == ("alice", 30)
    odd = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [17]}, "strict": True}}
    assert chat(client, response_format=odd).choices[0].message.content == "17"


@pytest.mark.parametrize("model", [MODEL, "rot13"])
def test_patterns_and_grammars_are_kept_to(client: OpenAI, model: str) -> None:
    for shape, pattern in (
        ({"regex": "[0-9]{3}Q"}, "[0-9]{3}Q"),
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"choice": ["left", "right"]}, "left|right"),
    ):
        answer = chat(client, model=model, extra_body={"structured_outputs": shape}).choices[0]
        assert re.fullmatch(pattern, answer.message.content)
    impossible = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "#"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, model=model, response_format=impossible)
    assert refused.value.code == "invalid_grammar"
    assert "leads back to itself" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, model=model, extra_body={"structured_outputs": {"grammar": "root ::= other"}})
    assert 'Rule "other" is not defined' in refused.value.message
    assert ".cc:" not in refused.value.message, "a place in the source of a library"


def test_logprobs_are_those_of_the_sent_tokens(client: OpenAI) -> None:
    content = chat(client, logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
    assert len(content) == 4
    for token in content:
        assert token.logprob == max(top.logprob for top in token.top_logprobs)  # the most likely, at temperature 0
        assert len(token.top_logprobs) == 3
        assert bytes(token.bytes).decode() == token.token
    assert chat(client, max_tokens=4).choices[0].logprobs is None
    echoed = client.completions.create(model=MODEL, prompt="ab", echo=True, logprobs=1, max_tokens=1, temperature=0)
    assert echoed.choices[0].logprobs is not None
    assert echoed.choices[0].logprobs.tokens is not None
    assert echoed.choices[0].logprobs.tokens[:2] == ["a", "b"]


def test_n_and_seed(client: OpenAI) -> None:
    def texts(seed: int) -> list[str]:
        answer = chat(client, n=4, temperature=2, seed=seed, max_tokens=40, logit_bias={"32": 4, "101": 4})
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        return [choice.message.content for choice in answer.choices]

    assert texts(1) == texts(1)
    assert len({*texts(1), *texts(100)}) > 4


def test_stop_and_bias(client: OpenAI) -> None:
    whole = chat(client).choices[0].message.content
    stopped = chat(client, stop=["o", "zzz"]).choices[0]
    assert stopped.message.content == whole.partition("o")[0]
    assert stopped.finish_reason == "stop"
    assert chat(client, logit_bias={"90": 100}, max_tokens=5).choices[0].message.content == "ZZZZZ"


def test_usage_only_on_request(client: OpenAI) -> None:
    for make in (
        lambda **more: client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, **more),
        lambda **more: client.completions.create(model=MODEL, prompt="hi", max_tokens=4, stream=True, **more),
    ):
        chunks: list[Any] = list(make(stream_options={"include_usage": True}))
        assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1].choices == []
        assert all(chunk.usage is None for chunk in make())


# --- Responses -----------------------------------------------------------------------------------------------------
def test_responses_and_their_events(client: OpenAI) -> None:
    plain = client.responses.create(model="uppercase", input="hello world", temperature=0)
    assert (plain.output_text, plain.status, plain.model) == ("HELLO WORLD", "completed", "uppercase")
    assert plain.usage is not None
    assert plain.usage.output_tokens == len("HELLO WORLD") + 1
    kinds: list[str] = []
    with client.responses.stream(model="uppercase", input="hello world", temperature=0) as stream:
        for event in stream:
            if not kinds or kinds[-1] != event.type:
                kinds.append(event.type)
        done = stream.get_final_response()
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert done.output_text == "HELLO WORLD"


def test_responses_with_instructions_tools_and_a_schema(client: OpenAI) -> None:
    tool: Any = {"type": "function", "name": "set_light", "parameters": LIGHT, "strict": True}
    answer = client.responses.create(
        model=MODEL, input="light", instructions="be brief", temperature=0, tools=[tool],
        tool_choice={"type": "function", "name": "set_light"},
    )  # fmt: skip
    [call] = [item for item in answer.output if item.type == "function_call"]
    assert json.loads(call.arguments)["state"] in ("on", "off")
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "set_light"}]}
    both: Any = [{**tool, "name": "set_fan"}, tool]
    again = client.responses.create(model=MODEL, input="light", temperature=0, tools=both, tool_choice=allowed)
    assert {item.name for item in again.output if item.type == "function_call"} == {"set_light"}
    assert [one.name for one in again.tools if one.type == "function"] == ["set_fan", "set_light"]
    assert again.tool_choice.model_dump(exclude_none=True) == allowed  # type: ignore[union-attr]
    shape: Any = {"format": {"type": "json_schema", "name": "n", "schema": {"enum": [17]}, "strict": True}}
    assert client.responses.create(model=MODEL, input="a number", temperature=0, text=shape).output_text == "17"


def test_tokens_of_a_response_are_counted(client: OpenAI) -> None:
    tool: Any = {"type": "function", "name": "set_light", "parameters": LIGHT, "strict": True}
    for more in ({}, {"instructions": "be brief"}, {"tools": [tool], "tool_choice": "none"}):
        requested: Any = {"model": "uppercase", "input": "hello world", **more}
        counted = client.responses.input_tokens.count(**requested)
        usage = client.responses.create(**requested, max_output_tokens=1).usage
        assert usage is not None
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", usage.input_tokens)
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(model="gpt-99", input="hi")


# --- refused, not dropped ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"functions": [{"name": "f", "parameters": {}}]}, "functions"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "text only"),
        ({"extra_body": {"thinking_token_budget": 9}}, "reasoning"),
        ({"logprobs": True, "top_logprobs": 10_000}, "logprobs"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused(client: OpenAI, more: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as refused:
        chat(client, **more)
    assert refused.value.type


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"extra_body": {"nonsense": 1}}, "nonsense"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"extra_body": {"response_format": {"type": "text", "value": 1}}}, "response_format.value"),
    ],
    ids=str,
)
def test_hints_are_left_out_with_a_warning(client: OpenAI, more: dict[str, Any], name: str) -> None:
    message: Any = {"role": "user", "content": "hello world"}
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[message], temperature=0, max_tokens=20, **more
    )
    assert raw.headers["x-roundhouse-warning"].endswith(f": {name}")
    assert raw.parse().choices[0].message.content
    with pytest.raises(openai.BadRequestError, match=re.escape(name)):
        chat(client, extra_headers={"Prefer": "handling=strict"}, **more)


def test_a_schema_beside_json_object_is_followed(client: OpenAI) -> None:
    """Hugging Face's client and others send it like this."""
    answer = chat(client, extra_body={"response_format": {"type": "json_object", "value": {"const": 17}}})
    assert answer.choices[0].message.content == "17"


def test_an_answer_longer_than_the_context_is_cut_with_a_warning(client: OpenAI) -> None:
    """The recipe of starter-chat says so, as many clients send a large `max_tokens` by default."""
    message = {"role": "user", "content": "hello"}
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=[message], max_tokens=600)  # type: ignore[list-item]
    assert "max_tokens" in raw.headers["x-roundhouse-warning"]
    assert raw.parse().choices[0].message.content


def test_what_changes_no_answer_is_let_through(client: OpenAI) -> None:
    more = {"metadata": {"a": "b"}, "service_tier": "auto", "store": False, "user": "u", "prompt_cache_key": "k"}
    assert chat(client, **more).choices[0].message.content == chat(client).choices[0].message.content


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": [{"type": "web_search_preview"}], "tool_choice": "required"}, "web_search_preview"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "send the conversation as 'input'"),
    ],
    ids=str,
)
def test_responses_refuse_what_they_cannot_do(client: OpenAI, more: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.APIStatusError, match=words) as refused:
        client.responses.create(model=MODEL, input="hi", **more)
    assert refused.value.status_code in (400, 404)


def test_responses_leave_out_hints_with_a_warning(client: OpenAI) -> None:
    """A coding agent sends these in each of its requests."""
    raw = client.responses.with_raw_response.create(
        model=MODEL, input="hi", temperature=0, max_output_tokens=8, truncation="auto", text={"verbosity": "low"},
        reasoning={"effort": "high", "summary": "detailed"}, tools=[{"type": "web_search"}],
        extra_body={"client_metadata": {"installation": "1"}},
    )  # fmt: skip
    warning = raw.headers["x-roundhouse-warning"]
    for name in ("client_metadata", "truncation", "web_search", "reasoning.effort", "reasoning.summary", "verbosity"):
        assert name in warning
    assert raw.parse().output_text


def test_a_tool_that_the_client_runs_comes_back_in_its_own_form(client: OpenAI) -> None:
    light: Any = {"type": "function", "name": "set_light", "parameters": LIGHT, "strict": True}
    home: Any = {"type": "namespace", "name": "home", "description": "the house", "tools": [light]}
    requested: Any = {
        "model": MODEL, "input": "light", "temperature": 0, "tools": [home, {"type": "local_shell"}],
        "tool_choice": {"type": "function", "name": "home__set_light"},
    }  # fmt: skip
    answer = client.responses.create(**requested)
    [call] = [item for item in answer.output if item.type == "function_call"]
    assert (call.name, call.namespace) == ("set_light", "home")
    assert json.loads(call.arguments)["state"] in ("on", "off")
    assert [tool.type for tool in answer.tools] == ["namespace", "local_shell"]
    history: Any = [
        {"role": "user", "content": "light"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "done"},
    ]
    again = client.responses.create(**{**requested, "input": history, "tool_choice": "none"})
    assert again.status == "completed"
    with client.responses.stream(**requested) as stream:
        events = [event for event in stream if event.type == "response.output_item.done"]
    assert [(event.item.name, event.item.namespace) for event in events] == [("set_light", "home")]


def test_a_shell_call_in_a_stream(client: OpenAI) -> None:
    requested: Any = {
        "model": MODEL, "input": "list files", "temperature": 0, "tools": [{"type": "custom", "name": "note"}],
        "extra_body": {"structured_outputs": {"choice": ["[note(input='ls')]"]}},
    }  # fmt: skip
    kinds, items = [], []
    for event in client.responses.create(**requested, stream=True):
        kinds.append(event.type)
        if event.type in ("response.output_item.added", "response.output_item.done"):
            items.append(event.item)
    assert not [kind for kind in kinds if "function_call" in kind]
    assert {item.type for item in items} == {"custom_tool_call"}
    assert items[-1].name == "note"


def test_a_custom_tool_in_chat_completions(client: OpenAI) -> None:
    requested: Any = {
        "model": MODEL, "messages": [{"role": "user", "content": "list files"}], "temperature": 0,
        "tools": [{"type": "custom", "custom": {"name": "note"}}],
        "extra_body": {"structured_outputs": {"choice": ["[note(input='ls')]"]}},
    }  # fmt: skip
    [call] = client.chat.completions.create(**requested).choices[0].message.tool_calls or ()
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("note", "ls")
    history = [*requested["messages"], {"role": "assistant", "tool_calls": [call.model_dump()]}]
    history.append({"role": "tool", "tool_call_id": call.id, "content": "a.txt"})
    assert client.chat.completions.create(**{**requested, "messages": history}).choices[0].message.tool_calls
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**requested, stream=True) if chunk.choices]
    pieces = [piece.model_dump(exclude_none=True) for one in chunks for piece in one.delta.tool_calls or ()]
    assert pieces[0]["custom"]["name"] == "note"
    assert pieces[0]["type"] == "custom"
    assert "".join(piece["custom"]["input"] for piece in pieces) == "ls"
    assert chunks[-1].finish_reason == "tool_calls"


def test_the_code_of_a_prompt_that_is_too_long(client: OpenAI) -> None:
    """Agents shorten a conversation when they see it."""
    long = "x" * 2000
    for call, param in (
        (lambda: client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": long}]), "messages"),
        (lambda: client.completions.create(model=MODEL, prompt=long), "prompt"),
        (lambda: client.responses.create(model=MODEL, input=long), "input"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            call()
        error = refused.value
        assert (error.code, error.type, error.param) == ("context_length_exceeded", "invalid_request_error", param)
