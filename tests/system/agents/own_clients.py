"""Runs the clients that are installed with this server through the same cases, and prints their results as JSON.

usage: python -m tests.system.agents.own_clients URL
"""

import json
from collections.abc import Mapping
from typing import Any

from tests.system.agents.cases import (
    ALICE,
    HELLO,
    LIGHT,
    LIGHT_IS_ON,
    LONG,
    SET_LIGHT,
    STATE,
    TOOL,
    Cases,
    Person,
    chat_cases,
    failure,
    failures,
    run,
    user,
)

SCHEMA = {**Person.model_json_schema(), "additionalProperties": False}
BY_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}


def openai_chat(url: str) -> Cases:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def ask(model: str, messages: Any, **more: Any) -> Any:
        return client.chat.completions.create(model=model, messages=messages, temperature=0, **more)

    def schema() -> Any:
        answer = client.chat.completions.parse(
            model="extract-json", messages=user(ALICE), temperature=0, response_format=Person
        )
        return answer.choices[0].message.parsed.model_dump()

    def stop() -> None:
        with ask("starter-chat", user(HELLO), stream=True, max_tokens=400) as stream:
            next(iter(stream))

    return chat_cases(ask, schema, stop)


def openai_responses(url: str) -> Cases:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    offered = [{"type": "function", "strict": False, **SET_LIGHT}]

    def ask(model: str, items: Any, **more: Any) -> Any:
        return client.responses.create(model=model, input=items, temperature=0, store=False, **more)

    def stream() -> str:
        events = ask("uppercase", HELLO, stream=True)
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    def tools() -> list[Any]:
        first = ask("scripted", user(LIGHT), tools=offered)
        (call,) = [item for item in first.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": LIGHT_IS_ON}
        last = ask("scripted", [*user(LIGHT), *first.output, result], tools=offered)
        return [call.name, json.loads(call.arguments), last.output_text]

    def schema() -> Any:
        answer = client.responses.parse(
            model="extract-json", input=ALICE, temperature=0, store=False, text_format=Person
        )
        return answer.output_parsed.model_dump() if answer.output_parsed else None

    def stop() -> None:
        with ask("starter-chat", HELLO, stream=True, max_output_tokens=400) as events:
            next(event for event in events if event.type == "response.output_text.delta")

    return {
        "text": lambda: ask("uppercase", HELLO).output_text,
        "stream": stream,
        "tools": tools,
        "schema": schema,
        "error": lambda: failure(lambda: ask("nobody", HELLO)),
        "tooLong": lambda: failure(lambda: ask("starter-chat", LONG)),
        "stop": stop,
    }


def anthropic(url: str) -> Cases:
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    offered = [{"name": "set_light", "input_schema": STATE}]

    def settings(model: str, messages: Any, **more: Any) -> Any:
        return {"model": model, "messages": messages, "max_tokens": 100, "extra_body": {"temperature": 0}, **more}

    def ask(model: str, messages: Any, **more: Any) -> Any:
        return client.messages.create(**settings(model, messages, **more))

    def text_of(answer: Any) -> str:
        return "".join(block.text for block in answer.content if block.type == "text")

    def stream() -> str:
        with client.messages.stream(**settings("uppercase", user(HELLO))) as parts:
            return "".join(parts.text_stream)

    def tools() -> list[Any]:
        first = ask("scripted", user(LIGHT), tools=offered)
        (call,) = [block for block in first.content if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": LIGHT_IS_ON}
        turns = [*user(LIGHT), {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        return [call.name, call.input, text_of(ask("scripted", turns, tools=offered))]

    def stop() -> None:
        with client.messages.stream(**settings("starter-chat", user(HELLO), max_tokens=400)) as parts:
            next(iter(parts.text_stream))

    def schema() -> Any:
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        return json.loads(text_of(ask("extract-json", user(ALICE), output_config=form)))

    return {
        "text": lambda: text_of(ask("uppercase", user(HELLO))),
        "stream": stream,
        "tools": tools,
        "schema": schema,
        **failures(ask),
        "stop": stop,
    }


def ollama(url: str) -> Cases:
    import ollama

    client = ollama.Client(host=url)

    def ask(model: str, messages: Any, **more: Any) -> Any:
        options = {"temperature": 0, **more.pop("options", {})}
        return client.chat(model, messages, options=options, **more)

    def tools() -> list[Any]:
        first = ask("scripted", user(LIGHT), tools=[TOOL]).message
        (call,) = first.tool_calls
        result = {"role": "tool", "tool_name": call.function.name, "content": LIGHT_IS_ON}
        last = ask("scripted", [*user(LIGHT), first, result], tools=[TOOL])
        return [call.function.name, dict(call.function.arguments), last.message.content]

    def stop() -> None:
        stream = ask("starter-chat", user(HELLO), stream=True, options={"num_predict": 400})
        next(stream)
        stream.close()

    return {
        "text": lambda: ask("uppercase", user(HELLO)).message.content,
        "stream": lambda: "".join(part.message.content or "" for part in ask("uppercase", user(HELLO), stream=True)),
        "tools": tools,
        "schema": lambda: json.loads(ask("extract-json", user(ALICE), format=SCHEMA).message.content),
        **failures(ask),
        "stop": stop,
    }


def cohere(url: str) -> Cases:
    import cohere

    client = cohere.ClientV2(base_url=url, api_key="none")

    def ask(model: str, messages: Any, **more: Any) -> Any:
        return client.chat(model=model, messages=messages, temperature=0, **more)

    def stream() -> str:
        events: Any = client.chat_stream(model="uppercase", messages=user(HELLO), temperature=0)
        return "".join(event.delta.message.content.text for event in events if event.type == "content-delta")

    def tools() -> list[Any]:
        first = ask("scripted", user(LIGHT), tools=[TOOL]).message
        (call,) = first.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": LIGHT_IS_ON}
        turns = [*user(LIGHT), {"role": "assistant", "tool_calls": first.tool_calls}, result]
        last = ask("scripted", turns, tools=[TOOL])
        return [call.function.name, json.loads(call.function.arguments), last.message.content[0].text]

    def stop() -> None:
        events: Any = client.chat_stream(model="starter-chat", messages=user(HELLO), max_tokens=400)
        next(event for event in events if event.type == "content-delta")
        events.close()

    return {
        "text": lambda: ask("uppercase", user(HELLO)).message.content[0].text,
        "stream": stream,
        "tools": tools,
        "schema": lambda: json.loads(
            ask("extract-json", user(ALICE), response_format={"type": "json_object", "schema": SCHEMA})
            .message.content[0]
            .text
        ),
        **failures(ask),
        "stop": stop,
    }


def huggingface_hub(url: str) -> Cases:
    from huggingface_hub import InferenceClient

    client = InferenceClient(base_url=f"{url}/v1", api_key="none")

    def ask(model: str, messages: Any, **more: Any) -> Any:
        return client.chat_completion(messages, model=model, temperature=0, **more)

    def schema() -> Any:
        return json.loads(ask("extract-json", user(ALICE), response_format=BY_SCHEMA).choices[0].message.content)

    def stop() -> None:
        stream = ask("starter-chat", user(HELLO), stream=True, max_tokens=400)
        next(stream)
        stream.close()

    return chat_cases(ask, schema, stop)


def langchain(url: str) -> Cases:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    def model(name: str, **more: Any) -> Any:
        settings = {"base_url": f"{url}/v1", "api_key": "none", "temperature": 0, "max_retries": 0}
        return ChatOpenAI(model=name, **{**settings, **more})

    def tools() -> list[Any]:
        with_tools = model("scripted").bind_tools([TOOL])
        first = with_tools.invoke(LIGHT)
        (call,) = first.tool_calls
        last = with_tools.invoke([HumanMessage(LIGHT), first, ToolMessage(LIGHT_IS_ON, tool_call_id=call["id"])])
        return [call["name"], call["args"], last.text]

    def stop() -> None:
        stream = model("starter-chat", max_tokens=400).stream(HELLO)
        next(stream)
        stream.close()

    return {
        "text": lambda: model("uppercase").invoke(HELLO).text,
        "stream": lambda: "".join(part.text for part in model("uppercase").stream(HELLO)),
        "tools": tools,
        "schema": lambda: model("extract-json").with_structured_output(Person).invoke(ALICE).model_dump(),
        "error": lambda: failure(lambda: model("nobody").invoke(HELLO)),
        "tooLong": lambda: failure(lambda: model("starter-chat").invoke(LONG)),
        "stop": stop,
    }


def clients(url: str) -> Mapping[str, Cases]:
    return {
        "openai in Python": openai_chat(url),
        "openai responses in Python": openai_responses(url),
        "anthropic in Python": anthropic(url),
        "ollama in Python": ollama(url),
        "cohere": cohere(url),
        "huggingface_hub": huggingface_hub(url),
        "langchain": langchain(url),
    }


run(clients)
