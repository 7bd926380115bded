"""When an engine's process is killed, running calls end at once, and another engine can start in the same slot."""

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from models.chat.engine import ChatCall, VllmEngine
from models.messages import Chunk, HttpCall, Progress
from registry.errors import BadRequest, EngineFailed
from tests.contract.chat import fixtures as chat_fixtures

pytestmark = pytest.mark.real
HEAD = {"head_dim": 16}
MANY = 64
"""Answers to one call: so many that the test acts before the last one ends, however busy the machine is."""


def _begin(engine: VllmEngine, *, stream: bool) -> ChatCall:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 500, "n": MANY, "ignore_eos": True, "stream": stream}
    return engine.call(
        HttpCall(path="/v1/completions", body=json.dumps(body).encode(), served="tiny", display_name="tiny")
    )


async def _read(call: ChatCall, started: asyncio.Event) -> None:
    async for event in call:
        if isinstance(event, Chunk):
            started.set()


def engine_core() -> psutil.Process:
    """Return EngineCore's process. The process that checks grammars is another child."""
    (core,) = (child for child in psutil.Process().children() if "EngineCore" in child.name())
    return core


async def test_a_killed_engine_ends_its_calls_and_another_starts(tmp_path: Path) -> None:
    others = psutil.Process().children()
    base = chat_fixtures.write_base(tmp_path / "base")
    recipe = chat_fixtures.recipe(base)
    engine, progress = VllmEngine(), list[Progress]()
    await engine.load(recipe, base, "cpu", progress.append)
    with pytest.raises(EngineFailed):
        await engine.load(recipe, base, "cpu", progress.append)
    core = engine_core()
    started = asyncio.Event()
    calls = [asyncio.create_task(_read(_begin(engine, stream=stream), started)) for stream in (True, True, False)]
    await started.wait()
    pinging = asyncio.create_task(engine.ping())
    os.kill(core.pid, signal.SIGKILL)
    for call in calls:
        with pytest.raises(EngineFailed):
            await asyncio.wait_for(call, 200)
    await asyncio.gather(pinging, return_exceptions=True)
    for refused in (engine.ping(), engine.drop("sha256:" + "0" * 64), _read(_begin(engine, stream=True), started)):
        with pytest.raises(EngineFailed):
            await refused
    await engine.close()

    again = VllmEngine()
    await again.load(recipe, base, "cpu", progress.append)
    core = engine_core()
    await again.ping()
    call = _begin(again, stream=True)
    await anext(call)
    await anext(call)
    await again.close()
    with pytest.raises(EngineFailed):
        await anext(call)
    assert not core.is_running()
    assert set(psutil.Process().children()) <= set(others)


async def test_a_token_without_a_row_in_the_embeddings_is_refused(tmp_path: Path) -> None:
    """As in a fine-tune that added tokens to its tokenizer but not to its network. vLLM would accept them."""
    base = chat_fixtures.write_base(tmp_path / "base", vocabulary=256)  # its tokenizer has six more
    engine = VllmEngine()
    await engine.load(chat_fixtures.recipe(base), base, "cpu", lambda progress: None)  # which asks for chats, too
    for path, body in (
        ("/v1/completions", {"prompt": "a <|tool|>"}),
        ("/v1/completions", {"prompt": "a <|tool|>", "stream": True}),
        ("/v1/completions", {"prompt": [[97], [97, 261]]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": [97], "min_tokens": 2}),  # its end is token 257
        ("/v1/completions", {"prompt": "a"}),
    ):
        sent = json.dumps({"model": "tiny", "max_tokens": 2} | body).encode()
        call = engine.call(HttpCall(path=path, body=sent, served="tiny", display_name="tiny"))
        if body["prompt" if "prompt" in body else "messages"] == "a":
            assert [event async for event in call]
            continue
        with pytest.raises(
            BadRequest, match=r"(Token '<\|\w+\|>' \(2\d\d\) .* has|token 257 .* beyond the) 256 tokens"
        ):
            _ = [event async for event in call]
    await engine.close()


async def test_an_engine_that_ends_at_its_first_step_says_why(tmp_path: Path) -> None:
    """vLLM writes the cause only to its log, and answers the request with an internal error."""
    others = psutil.Process().children()
    base = chat_fixtures.write_base(tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    # a head size for which vLLM has no attention on a CPU, which it notices only at the first step
    (base / "config.json").write_text(json.dumps(config | {"num_attention_heads": 8, "num_key_value_heads": 4} | HEAD))
    engine = VllmEngine()
    with pytest.raises(EngineFailed, match=r"^tiny could not be loaded: RuntimeError: .*head_dim=16"):
        await engine.load(chat_fixtures.recipe(base), base, "cpu", lambda progress: None)
    assert set(psutil.Process().children()) <= set(others)


async def test_a_load_that_fails_leaves_no_process(tmp_path: Path) -> None:
    others = psutil.Process().children()
    base = chat_fixtures.write_base(tmp_path / "base")
    (base / "model.safetensors").write_bytes(b"no weights")
    engine = VllmEngine()
    with pytest.raises(EngineFailed, match="SafetensorError"):
        await engine.load(chat_fixtures.recipe(base), base, "cpu", lambda progress: None)
    assert set(psutil.Process().children()) <= set(others)
    with pytest.raises(EngineFailed):
        await engine.ping()
