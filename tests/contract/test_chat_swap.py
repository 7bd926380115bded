"""A running engine takes another checkpoint's weights, on the real vLLM: afterwards it is what a fresh one would be."""

import asyncio
import hashlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from models.chat.engine import VllmEngine
from models.chat.vllm import launch
from models.messages import AdapterRef, Chunk, Finished, HttpCall, Loaded
from registry.errors import EngineFailed
from registry.recipe import Recipe
from tests.contract import chat_fixtures
from tests.contract.chat_nasty import TEXT

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]
PROMPT = "a b c d e f g h " * 20
"""More than one block of the prefix cache."""


def _digest(core: Any) -> str:
    """Of EngineCore's model: every tensor, what each layer makes of fixed inputs (CPU layers keep packed copies of
    their weights), and the adapter places."""
    import torch

    runner = core.model_executor.driver_worker.worker.model_runner
    total = hashlib.sha256()

    def count(name: str, tensor: torch.Tensor) -> None:
        values = tensor.detach().reshape(-1).contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(values.view(torch.uint8).numpy().tobytes() if values.numel() else b"")

    for name, tensor in (*runner.model.named_parameters(), *runner.model.named_buffers()):
        count(name, tensor)
    for name, module in runner.model.named_modules():
        if "cpu_linear" in vars(module) and module.weight.ndim == 2:
            width = getattr(module, "input_size_per_partition", None) or module.embedding_dim
            inputs = torch.linspace(-1, 1, 3 * width).reshape(3, width).to(runner.dtype)
            count(f"{name} of a ramp", module.cpu_linear(inputs, module.weight, None))
        for halves in ("lora_a_stacked", "lora_b_stacked"):
            for place in getattr(module, halves, None) or ():
                count(f"{name}.{halves}", place)
    return total.hexdigest()


def _hold(core: Any) -> str:
    """Somebody keeps one of the model's tensors."""
    name, core.held_by_a_test = next(core.model_executor.driver_worker.worker.model_runner.model.named_parameters())
    return str(name)


def recipe(name: str, base: Path) -> Recipe:
    return chat_fixtures.recipe(base, device_places=2).model_copy(update={"id": name})


@dataclass
class Twins:
    folder: Path
    one: Path
    two: Path
    adapters: tuple[AdapterRef, AdapterRef]


@dataclass
class Bench:
    """An engine, and the model that is in it."""

    engine: VllmEngine
    model: str = ""

    async def load(self, name: str, base: Path) -> Loaded:
        self.model = name
        return await self.engine.load(recipe(name, base), base, "cpu", lambda progress: None)

    async def swap(self, name: str, base: Path) -> Loaded:
        loaded = await self.engine.swap(recipe(name, base), base, lambda progress: None)
        self.model = name
        return loaded

    async def ask(self, adapter: AdapterRef | None = None, model: str | None = None) -> tuple[Any, int]:
        """(The choice with its logprobs, to the bit; how many tokens of the prompt were cached.)"""
        served = adapter.digest if adapter else model or self.model
        body = {
            "model": served, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 5,
            "return_token_ids": True,
        }  # fmt: skip
        call = HttpCall(path=TEXT, body=json.dumps(body).encode(), served=served, shown=served, adapter=adapter)
        data, cached = b"", -1
        async for event in self.engine.call(call):
            match event:
                case Chunk():
                    data += event.data
                case Finished():
                    cached = event.usage.cached_tokens
        answer = json.loads(data)
        assert answer["model"] == served
        return answer["choices"], cached

    async def place(self, adapter: AdapterRef) -> None:
        await self.engine.stage(adapter)
        await self.engine.place(adapter, None)

    async def core(self, name: str, *arguments: str) -> Any:
        return await self.engine._engine.engine_core.call_utility_async(name, *arguments)

    async def facts(self, *adapters: AdapterRef) -> dict[str, Any]:
        """All that is to be the same in a fresh engine, whatever was in this one before."""
        found: dict[str, Any] = {"digest": await self.core("digest")}
        found["base"], cached = await self.ask()
        assert cached == 0, "a prefix of another model was found"
        again, cached = await self.ask()
        assert again == found["base"]
        assert cached > 0
        for number, adapter in enumerate(adapters):
            with pytest.raises(EngineFailed, match="never answers"):
                await self.ask(adapter)
            await self.place(adapter)
            found[f"adapter {number}"], cached = await self.ask(adapter)
            assert cached == 0
        return found


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    folder = tmp_path_factory.mktemp("swap")
    one, two = (chat_fixtures.write_base(folder / name, seed=seed) for seed, name in enumerate(("one", "two")))
    adapters = tuple(chat_fixtures.write_adapter(folder / f"adapter-{seed}", seed) for seed in (300, 301))
    return Twins(folder, one, two, (adapters[0], adapters[1]))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(twins: Twins) -> AsyncIterator[Bench]:
    from vllm.v1.engine.core import EngineCore

    with pytest.MonkeyPatch.context() as patch:  # EngineCore is a fork of this process
        patch.setattr(EngineCore, "digest", _digest, raising=False)
        patch.setattr(EngineCore, "hold", _hold, raising=False)
        made = Bench(VllmEngine())
        await made.load("one", twins.one)
        yield made
        await made.engine.close()


async def test_there_and_back_it_is_what_a_fresh_engine_is(bench: Bench, twins: Twins) -> None:
    mine, other = twins.adapters
    first = await bench.facts(mine)
    fresh = Bench(VllmEngine())
    try:
        await fresh.load("two", twins.two)
        there = await fresh.facts(mine, other)
    finally:
        await fresh.engine.close()
    assert first != there
    for _ in range(int(os.environ.get("SWAPS", "1"))):
        loaded = await bench.swap("two", twins.two)
        assert loaded.weights_bytes > 0
        assert set(loaded.seconds) == {"weights"}
        assert await bench.core("held_adapters") == [[], []]
        assert await bench.facts(mine, other) == there, "the first adapter has its digest on both"
        with pytest.raises(EngineFailed, match="never answers"):
            await bench.ask(model="one")
        await bench.swap("one", twins.one)
        assert await bench.facts(mine) == first
    await bench.engine.ping()


async def test_what_is_no_twin_is_refused_and_the_engine_goes_on(bench: Bench, twins: Twins) -> None:
    before, _ = await bench.ask()
    other = shutil.copytree(twins.two, twins.folder / "other")
    (other / "generation_config.json").write_text('{"temperature": 0.5}')
    for wanted in (recipe("other", other), recipe("two", twins.two).model_copy(update={"context_length": 256})):
        with pytest.raises(EngineFailed, match="more than its weights"):
            await bench.engine.swap(wanted, Path(wanted.source.path), lambda progress: None)  # type: ignore[union-attr]
    assert (await bench.ask())[0] == before


async def test_never_under_a_request_nor_with_adapters(bench: Bench, twins: Twins) -> None:
    asking = asyncio.create_task(bench.ask())
    while not bench.engine._adapters.calls:  # type: ignore[union-attr]
        await asyncio.sleep(0)
    with pytest.raises(EngineFailed, match="still run"):
        await bench.swap("two", twins.two)
    assert await asking
    waiting = asyncio.create_task(bench.ask())  # the core's own count, were the one above wrong
    while await bench.core("forget_adapters") != ["busy"]:
        assert not waiting.done()
    assert await bench.core("swap_model", str(twins.two), "two") == ["busy"]
    before, _ = await waiting
    await bench.engine._adapters.forget()  # type: ignore[union-attr]
    await bench.place(twins.adapters[0])
    assert (await bench.core("swap_model", str(twins.two), "two"))[0] == "failed"
    assert (await bench.ask())[0] == before


@pytest.mark.parametrize(
    ("fault", "words"), [("nan", "not finite"), ("missing", "no module or parameter"), ("held", "in use still")]
)
async def test_a_swap_that_fails_leaves_nobody_who_answers(bench: Bench, twins: Twins, fault: str, words: str) -> None:
    """The last ones here: each takes an engine's life."""
    if bench.engine._state != "loaded":
        await bench.engine.close()
        bench.engine = VllmEngine()
        await bench.load("one", twins.one)
    bad = shutil.copytree(twins.two, twins.folder / fault)
    tensors = load_file(bad / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    if fault == "nan":
        tensors[name][3, 4] = float("nan")
    elif fault == "missing":
        tensors["model.layers.1.unknown.weight"] = tensors.pop(name)
    else:
        await bench.core("hold")
    save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
    if fault == "missing":  # its key tells already: let it through, to see that vLLM's loader would tell too
        bench.engine._swapper.arguments = lambda recipe, path: _renamed(bench, path)  # type: ignore[union-attr, method-assign]
    with pytest.raises(EngineFailed, match=words):
        await bench.swap("bad", bad)
    for work in (bench.ask(), bench.ask(model="bad"), bench.swap("one", twins.one), bench.engine.ping()):
        with pytest.raises(EngineFailed, match="did not sleep, wake or swap well"):
            await work


def _renamed(bench: Bench, path: Path) -> Any:
    from models import chat_settings, chat_vllm

    return chat_settings.arguments(recipe("bad", path), path, "cpu", chat_vllm.parser())


async def test_a_core_that_is_killed_in_a_swap_is_noticed(bench: Bench, twins: Twins) -> None:
    await bench.engine.close()
    bench.engine = VllmEngine()
    await bench.load("one", twins.one)
    (process,) = launch.processes(bench.engine._engine)
    os.kill(process.pid, signal.SIGSTOP)
    swapping = asyncio.create_task(bench.swap("two", twins.two))
    while bench.engine._state != "changing":
        await asyncio.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineFailed):
        await swapping
    with pytest.raises(EngineFailed):
        await bench.ask()
