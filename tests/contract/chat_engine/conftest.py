"""One engine for all tests in this folder."""

import json
from argparse import Namespace
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from models.chat.engine import VllmEngine
from registry.errors import EngineFailed
from registry.recipes.definition import Recipe
from tests.contract.chat import fixtures as chat_fixtures
from tests.contract.chat.oracle import Oracle
from tests.contract.chat_engine.bench import Bench

TOOLS = {"enable_auto_tool_choice": True, "tool_call_parser": "pythonic"}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("chat")
    base = chat_fixtures.write_base(folder / "base")
    adapters = [
        chat_fixtures.write_adapter(folder / f"adapter-{i}", 100 + i, rank=8 if i % 2 else 16) for i in range(6)
    ]
    oracle = Oracle(base, adapters)  # before the load, so that its OpenMP threads do not disturb the fork
    stated = json.loads((base / "tokenizer_config.json").read_text())
    # the class of another tokenizer, as in DeepSeek's distilled Llamas; it must not count
    (base / "tokenizer_config.json").write_text(json.dumps({**stated, "tokenizer_class": "LlamaTokenizerFast"}))
    bench = Bench(VllmEngine(), base, adapters, oracle)
    warmed: list[str] = []
    stock = VllmEngine._warm_up

    async def noted(engine: VllmEngine, arguments: Namespace, recipe: Recipe, device: str) -> None:
        await stock(engine, arguments, recipe, device)
        warmed.append(device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VllmEngine, "_warm_up", noted)
        loaded = await bench.engine.load(chat_fixtures.recipe(base, **TOOLS), base, "cpu", bench.progress.append)
    assert warmed == ["cpu"], "first-time costs are part of the load"
    assert loaded.kv_cache_bytes == 64 << 20
    assert loaded.context_length == chat_fixtures.CONTEXT
    assert loaded.resident_bytes > loaded.weights_bytes > 0
    yield bench
    await bench.engine.close()
    await bench.engine.close()
    with pytest.raises(EngineFailed):
        await bench.engine.ping()
