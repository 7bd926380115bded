"""Runs Python clients through the same cases against a server, and prints their results as JSON.

Needs the environment of `scripts/install-clients others`. usage: python -m tests.system.agents.other_clients URL
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import create_model

from tests.system.agents.cases import (
    ALICE,
    HELLO,
    LIGHT,
    LIGHT_IS_ON,
    LONG,
    Cases,
    Person,
    chat_cases,
    failure,
    run,
    user,
)

V1 = f"{sys.argv[1]}/v1"


def litellm() -> Cases:
    import litellm

    def ask(model: str, messages: Any, **more: Any) -> Any:
        return litellm.completion(
            f"openai/{model}", messages, api_base=V1, api_key="none", temperature=0, max_retries=0, **more
        )

    def schema() -> Any:
        return json.loads(ask("extract-json", user(ALICE), response_format=Person).choices[0].message.content)

    def stop() -> None:
        next(iter(ask("starter-chat", user(HELLO), stream=True, max_tokens=400))).choices[0]

    return chat_cases(ask, schema, stop)


def pydantic_ai() -> Cases:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def agent(model: str, **more: Any) -> Any:
        named = OpenAIChatModel(model, provider=OpenAIProvider(base_url=V1, api_key="none"))
        return Agent(named, model_settings={"temperature": 0}, retries=0, **more)

    async def stream() -> str:
        async with agent("uppercase").run_stream(HELLO) as answer:
            return "".join([part async for part in answer.stream_text(delta=True)])

    def tools() -> list[Any]:
        calls: list[str] = []

        def set_light(state: str) -> str:
            calls.append(state)
            return LIGHT_IS_ON

        answer = agent("scripted", tools=[set_light]).run_sync(LIGHT).output
        return ["set_light", {"state": calls[0]}, answer]

    async def stop() -> None:
        async with agent("starter-chat").run_stream(HELLO) as answer:
            async for _ in answer.stream_text(delta=True, debounce_by=None):
                break

    return {
        "text": lambda: agent("uppercase").run_sync(HELLO).output,
        "stream": lambda: asyncio.run(stream()),
        "tools": tools,
        "schema": lambda: agent("extract-json", output_type=NativeOutput(Person)).run_sync(ALICE).output.model_dump(),
        "error": lambda: failure(lambda: agent("nobody").run_sync(HELLO)),
        "tooLong": lambda: failure(lambda: agent("starter-chat").run_sync(LONG)),
        "stop": lambda: asyncio.run(stop()),
    }


def openai_agents(api: str) -> Cases:
    from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_api

    def agent(model: str, **more: Any) -> Any:
        set_default_openai_api(api)  # type: ignore[arg-type]
        settings = ModelSettings(temperature=0, max_tokens=more.pop("max_tokens", None))
        return Agent(name="tester", model=model, model_settings=settings, **more)

    async def stream(model: str, stops: bool, **more: Any) -> str:
        text = ""
        async for event in Runner.run_streamed(agent(model, **more), HELLO).stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
                if stops:
                    break
        return text

    def tools() -> list[Any]:
        calls: list[str] = []

        def set_light(state: str) -> str:
            calls.append(state)
            return LIGHT_IS_ON

        answer = Runner.run_sync(agent("scripted", tools=[function_tool(set_light)]), LIGHT).final_output
        return ["set_light", {"state": calls[0]}, answer]

    def stop() -> None:
        assert asyncio.run(stream("starter-chat", True, max_tokens=400))

    return {
        "text": lambda: Runner.run_sync(agent("uppercase"), HELLO).final_output,
        "stream": lambda: asyncio.run(stream("uppercase", False)),
        "tools": tools,
        "schema": lambda: Runner.run_sync(agent("extract-json", output_type=Person), ALICE).final_output.model_dump(),
        "error": lambda: failure(lambda: Runner.run_sync(agent("nobody"), HELLO)),
        "tooLong": lambda: failure(lambda: Runner.run_sync(agent("starter-chat"), LONG)),
        "stop": stop,
    }


def llama_index() -> Cases:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    def model(name: str, **more: Any) -> Any:
        settings = {"context_window": 8192, "temperature": 0, "is_function_calling_model": True, "max_retries": 0}
        return OpenAILike(
            **{"model": name, "api_base": V1, "api_key": "none", "is_chat_model": True, **settings, **more}
        )

    def tools() -> list[Any]:
        calls: list[str] = []

        def set_light(state: str) -> str:
            calls.append(state)
            return LIGHT_IS_ON

        tool = FunctionTool.from_defaults(set_light)
        named = model("scripted")
        first = named.chat_with_tools([tool], LIGHT)
        (call,) = named.get_tool_calls_from_response(first)
        result = ChatMessage(
            role="tool",
            content=str(tool(**call.tool_kwargs)),
            additional_kwargs={"tool_call_id": call.tool_id},
        )
        last = named.chat([ChatMessage(LIGHT), first.message, result])
        return [call.tool_name, {"state": calls[0]}, last.message.content]

    def stop() -> None:
        stream = model("starter-chat", max_tokens=400).stream_chat([ChatMessage(HELLO)])
        next(stream)
        stream.close()

    return {
        "text": lambda: model("uppercase").chat([ChatMessage(HELLO)]).message.content,
        "stream": lambda: "".join(part.delta or "" for part in model("uppercase").stream_chat([ChatMessage(HELLO)])),
        "tools": tools,
        "schema": lambda: (
            model("extract-json", should_use_structured_outputs=True)
            .as_structured_llm(Person)
            .chat([ChatMessage(ALICE)])
            .raw.model_dump()
        ),
        "error": lambda: failure(lambda: model("nobody").chat([ChatMessage(HELLO)])),
        "tooLong": lambda: failure(lambda: model("starter-chat").chat([ChatMessage(LONG)])),
        "stop": stop,
    }


def instructor() -> Cases:
    import instructor
    from openai import OpenAI

    client = OpenAI(base_url=V1, api_key="none", max_retries=0)
    by_schema = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    by_tools = instructor.from_openai(client, mode=instructor.Mode.PARALLEL_TOOLS)
    set_light = create_model("set_light", state=(str, ...))

    def ask(model: str, text: str, form: Any = None, **more: Any) -> Any:
        return by_schema.create(form, model=model, messages=user(text), temperature=0, max_retries=0, **more)

    def tools() -> list[Any]:
        """It reads calls into objects; the second turn is the user's own."""
        (called,) = by_tools.create(
            Iterable[set_light],  # type: ignore[valid-type]
            model="scripted",
            messages=user(LIGHT),
            temperature=0,
            max_retries=0,
        )
        last = ask("scripted", LIGHT_IS_ON)
        return [type(called).__name__, called.model_dump(), last.choices[0].message.content]

    def stop() -> None:
        stream = ask("starter-chat", HELLO, stream=True, max_tokens=400)
        next(iter(stream))
        stream.close()

    return {
        "text": lambda: ask("uppercase", HELLO).choices[0].message.content,
        "stream": lambda: "".join(part.choices[0].delta.content or "" for part in ask("uppercase", HELLO, stream=True)),
        "tools": tools,
        "schema": lambda: ask("extract-json", ALICE, Person).model_dump(),
        "error": lambda: failure(lambda: ask("nobody", HELLO, Person)),
        "tooLong": lambda: failure(lambda: ask("starter-chat", LONG, Person)),
        "stop": stop,
    }


def llm() -> Cases:
    """Return cases of Simon Willison's command line tool, configured for servers with OpenAI's API."""
    home = Path(tempfile.mkdtemp())
    models = [
        {"model_id": name, "model_name": name, "api_base": V1, "supports_schema": True, "supports_tools": True}
        for name in ("uppercase", "scripted", "extract-json", "nobody", "starter-chat")
    ]
    (home / "extra-openai-models.yaml").write_text(json.dumps(models))
    (home / "tools.py").write_text(f"def set_light(state: str) -> str:\n    return {LIGHT_IS_ON!r}\n")
    os.environ["LLM_USER_PATH"] = str(home)
    program = str(Path(sys.executable).with_name("llm"))

    def ask(model: str, text: str, *options: str) -> str:
        command = [program, "-m", model, "--no-log", "-o", "temperature", "0", text, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def refused(model: str, text: str) -> dict[str, Any]:
        try:
            ask(model, text)
        except RuntimeError as error:
            text = str(error)
            code = text.partition("Error code: ")[2][:3]
            return {"status": int(code) if code.isdigit() else None, "text": text}
        return {"status": 200, "text": ""}

    def tools() -> list[Any]:
        answer = ask("scripted", LIGHT, "--functions", str(home / "tools.py"))
        return ["set_light", {"state": "on"}, answer]

    def stop() -> None:
        command = [program, "-m", "starter-chat", "--no-log", "-o", "max_tokens", "400", HELLO]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.read(1)
        process.kill()
        process.wait()

    return {
        "text": lambda: ask("uppercase", HELLO, "--no-stream"),
        "stream": lambda: ask("uppercase", HELLO),
        "tools": tools,
        "schema": lambda: json.loads(ask("extract-json", ALICE, "--schema", "name, age int, city")),
        "error": lambda: refused("nobody", HELLO),
        "tooLong": lambda: refused("starter-chat", LONG),
        "stop": stop,
    }


def clients(_: str) -> Mapping[str, Cases]:
    return {
        "litellm": litellm(),
        "pydantic-ai": pydantic_ai(),
        "openai-agents": openai_agents("responses"),
        "openai-agents chat": openai_agents("chat_completions"),
        "llama-index": llama_index(),
        "instructor": instructor(),
        "llm": llm(),
    }


run(clients)
