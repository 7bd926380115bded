"""Short prompts become tokens without a thread, long ones in vLLM's; the tokens are the same either way."""

from typing import Any

import pytest

from models import chat_inline
from tests.contract.chat_engine.bench import Bench
from tests.contract.chat_nasty import CHAT, MESSAGES, TEXT

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(400)]

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def _chat(content: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": content}], **more}


SHORT = [
    _chat("short"),
    _chat([{"type": "text", "text": "short"}, {"type": "text", "text": "too"}]),
    (TEXT, {"prompt": "short"}),
    (MESSAGES, {"messages": [{"role": "user", "content": "short"}]}),
]
LONG = [
    _chat("long " * 80),
    _chat([{"type": "text", "text": "long " * 80}]),
    (CHAT, {"messages": [{"role": r, "content": "x"} for r in ("user", "assistant") * 9 + ("user",)]}),
    (TEXT, {"prompt": "long " * 80}),
    _chat("tools are written into the prompt", tools=[WEATHER], tool_choice="none"),
]


@pytest.fixture
def handed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what vLLM handed to its renderer's thread, from 300 characters on."""
    monkeypatch.setattr(chat_inline, "SHORT", 300)
    executor, names = bench.engine._engine.renderer._executor, []
    submit = executor.submit

    def noted(work: Any, *args: Any, **named: Any) -> Any:
        names.append(work.func.__name__)
        return submit(work, *args, **named)

    monkeypatch.setattr(executor, "submit", noted)
    return names


@pytest.mark.parametrize(("path", "body"), SHORT)
async def test_a_short_prompt_needs_no_thread(
    bench: Bench, handed: list[str], path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {**body, "max_tokens": 1, **({} if path == MESSAGES else {"return_token_ids": True, "temperature": 0})}
    answer = await bench.ask(path, body)
    assert (answer.status, handed) == (200, [])
    monkeypatch.setattr(chat_inline, "SHORT", 0)
    again = await bench.ask(path, body)
    templates = ["safe_apply_chat_template"] if path != TEXT else []
    assert handed == [*templates, "_tokenize_prompt"], "as vLLM does it"
    assert again.usage.prompt_tokens == answer.usage.prompt_tokens
    if path != MESSAGES:
        keys = ("prompt_token_ids", "choices")
        assert {k: answer.json.get(k) for k in keys} == {k: again.json.get(k) for k in keys}


@pytest.mark.parametrize(("path", "body"), LONG)
async def test_a_long_prompt_does_not_keep_the_loop(
    bench: Bench, handed: list[str], path: str, body: dict[str, Any]
) -> None:
    answer = await bench.ask(path, {**body, "max_tokens": 1})
    assert answer.status == 200
    assert handed[0] == ("_tokenize_prompt" if path == TEXT else "safe_apply_chat_template")


async def test_what_a_template_raises_comes_when_it_is_awaited() -> None:
    def refuse() -> None:
        raise ValueError("not with this template")

    refused = chat_inline.OnLoop(refuse, pytest.fail, lambda: True)()
    with pytest.raises(ValueError, match="not with this template"):
        await refused


async def test_vllms_application_has_no_middleware_but_what_fastapi_needs(bench: Bench) -> None:
    await bench.ask(TEXT, {"prompt": "first", "max_tokens": 1})
    layer, names = bench.engine._app.middleware_stack, []
    while hasattr(layer, "app") and not hasattr(layer, "routes"):
        names.append(type(layer).__name__)
        layer = layer.app
    assert names == ["ServerErrorMiddleware", "ExceptionMiddleware", "AsyncExitStackMiddleware"]
