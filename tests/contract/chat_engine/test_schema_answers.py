"""JSON schemas on the real engine, in each dialect: a complete answer fits its schema, or the request is a 400.

ROUNDHOUSE_SCHEMA_EXAMPLES sets the number of requests (default 120).
"""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from models.chat.grammars.language import REFUSED
from registry.errors import BadRequest
from tests.contract.chat.bombs import guided, of_schema
from tests.contract.chat.nasty import CHAT, HELLO, MESSAGES, RESPONSES, TEXT
from tests.contract.chat.schemas.drawn import SCHEMAS, faults
from tests.contract.chat_engine.bench import Answer, Bench

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(24 * 3600)]
EXAMPLES = int(os.environ.get("ROUNDHOUSE_SCHEMA_EXAMPLES", "120"))
TOKENS, TOGETHER = 64, 12
Body = dict[str, Any]
REQUIRED = {"type": "function", "function": {"name": "f"}}


def _tool(schema: Any, **more: Any) -> Body:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema, **more}}]}


DIALECTS: dict[str, tuple[str, str, Callable[[Any], Body]]] = {
    "chat": (CHAT, "response_format.json_schema.schema", lambda schema: {"messages": HELLO, **of_schema(schema)}),
    "not strict": (
        CHAT,
        "response_format.json_schema.schema",
        lambda schema: {
            "messages": HELLO,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": False}},
        },
    ),
    "structured_outputs": (CHAT, "structured_outputs.json", lambda schema: {"messages": HELLO, **guided(json=schema)}),
    "completions": (TEXT, "structured_outputs.json", lambda schema: {"prompt": "x", **guided(json=json.dumps(schema))}),
    "responses": (
        RESPONSES,
        "text.format.schema",
        lambda schema: {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
    ),
    "messages": (
        MESSAGES,
        "output_config.format.schema",
        lambda schema: {
            "messages": HELLO,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        },
    ),
    "named tool": (
        CHAT,
        "tools[0].function.parameters",
        lambda schema: {"messages": HELLO, **_tool(schema), "tool_choice": REQUIRED},
    ),
    "required tool": (
        CHAT,
        "tools[0].function.parameters",
        lambda schema: {"messages": HELLO, **_tool(schema), "tool_choice": "required"},
    ),
    "any tool": (
        MESSAGES,
        "tools[0].input_schema",
        lambda schema: {
            "messages": HELLO,
            "tools": [{"name": "f", "input_schema": {"type": "object", **schema}}],
            "tool_choice": {"type": "any"},
        },
    ),
}
"""Path, the field that holds the schema, and the body, by a name for the request."""
ANSWERED = ("chat", "not strict", "structured_outputs", "completions", "responses", "messages", "named tool")


def _limit(path: str) -> str:
    return "max_output_tokens" if path == RESPONSES else "max_tokens"


def _texts(path: str, answer: Answer) -> list[str]:
    """Return the answers that ended by themselves."""
    if path == RESPONSES:
        whole = answer.json
        return [whole["output"][-1]["content"][0]["text"]] if whole["status"] == "completed" else []
    if path == MESSAGES:
        return [answer.json["content"][-1]["text"]] if answer.json["stop_reason"] == "end_turn" else []
    texts: dict[int, str] = {}
    ended = set()
    for part in answer.events or [answer.json]:
        for choice in part["choices"]:
            index = choice["index"]
            message = choice.get("message") or choice.get("delta") or {}
            calls = [call["function"].get("arguments") or "" for call in message.get("tool_calls") or ()]
            text = choice.get("text") or message.get("content") or "".join(calls)
            texts[index] = texts.get(index, "") + text
            if choice["finish_reason"] in ("stop", "tool_calls"):
                ended.add(index)
    return [texts[index] for index in sorted(ended)]


async def test_answers_fit_their_schemas(bench: Bench) -> None:
    """One or two answers to a request, whole and streamed. Only answers that ended by themselves are checked."""
    drawn: list[Any] = []

    @settings(
        max_examples=EXAMPLES // 2, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )  # fmt: skip
    @given(schema=SCHEMAS)
    def draw(schema: Any) -> None:
        drawn.append(schema)

    draw()
    tokenizer = bench.engine._engine.get_tokenizer()
    bias = {str(tokenizer.encode(letter, add_special_tokens=False)[0]): 2 for letter in '"]}'}
    turn, codes = asyncio.Semaphore(TOGETHER), set[str]()

    async def check(number: int, schema: Any) -> int:
        path, _, make = DIALECTS[ANSWERED[number % len(ANSWERED)]]
        body = {**make(schema), "temperature": 1, _limit(path): TOKENS}
        if path in (CHAT, TEXT):
            body |= {"logit_bias": bias, "n": 1 + number % 2, "stream": number % 3 == 0}
        async with turn:
            try:
                answer = await bench.ask(path, body)
            except BadRequest as error:
                codes.add(error.code)
                return 0
        assert answer.status == 200, (schema, answer.data)
        texts = _texts(path, answer)
        for text in texts:
            wrong = faults(schema, text)
            assert not wrong, f"{schema} was answered by {text!r}: {wrong[0]}"
        return len(texts)

    twice = [schema for schema in drawn for _ in range(2)]  # each is checked once
    ended = sum(await asyncio.gather(*(check(number, schema) for number, schema in enumerate(twice))))
    assert ended > len(twice) / 3
    assert codes <= {"invalid_grammar", "grammar_too_large", "unsatisfiable_constraint"}
    assert bench.unfinished() == 0


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_keyword_that_cannot_be_enforced_is_a_400_with_its_path(bench: Bench, name: str) -> None:
    path, field, make = DIALECTS[name]
    for keyword in sorted(REFUSED):
        inner = {"if": True, keyword: {"type": "integer"}} if keyword in ("then", "else") else {keyword: "#/x"}
        schema = {"type": "object", "properties": {"a": inner}}
        with pytest.raises(BadRequest) as refused:
            await bench.ask(path, {**make(schema), _limit(path): 8})
        assert (refused.value.param, refused.value.code) == (f"{field}.properties.a.{keyword}", "invalid_grammar")
        assert f"at properties.a.{keyword}: " in refused.value.message


async def test_tools_that_the_model_may_call_do_not_constrain_it(bench: Bench) -> None:
    """Without `strict`, and with the choice left to the model, a schema only describes."""
    schema = {"type": "object", "properties": {"a": {"not": {"type": "object"}}}}
    for more in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
        answer = await bench.ask(CHAT, {"messages": HELLO, "max_tokens": 4, **_tool(schema), **more})
        assert answer.status == 200, answer.data
