"""The chat engine on the real vLLM: right weights, exact counts, names, aborts, refusals."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from models.chat import VllmEngine
from models.chat_usage import ChatCall
from models.messages import AdapterRef, Chunk, Finished, HttpCall, Progress, Started, Usage
from registry.errors import Conflict, EngineFailed, NotFound, RoundhouseError, Unfit
from tests.contract import chat_fixtures, chat_nasty
from tests.contract.chat_nasty import CHAT, MESSAGES, RESPONSES, TEXT
from tests.contract.chat_oracle import Oracle, tokens_of

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]
PLACES = 4


@dataclass
class Answer:
    status: int
    data: bytes
    usage: Usage

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def events(self) -> list[Any]:
        lines = [line[6:] for line in self.data.decode().splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


class Bench:
    """A loaded engine, its adapters and short ways to call it."""

    def __init__(self, engine: VllmEngine, base: Path, adapters: list[AdapterRef], oracle: Oracle) -> None:
        self.engine, self.base, self.adapters, self.oracle = engine, base, adapters, oracle
        self.progress: list[Progress] = []

    def begin(self, path: str, body: dict[str, Any] | bytes, adapter: AdapterRef | None = None) -> ChatCall:
        served = adapter.digest if adapter else "tiny"
        raw = body if isinstance(body, bytes) else json.dumps({"model": served, **body}).encode()
        return self.engine.call(HttpCall(path=path, body=raw, served=served, shown="my name", adapter=adapter))

    async def ask(self, path: str, body: dict[str, Any] | bytes, adapter: AdapterRef | None = None) -> Answer:
        status, parts, usage = 0, [], Usage()
        async for event in self.begin(path, body, adapter):
            match event:
                case Started():
                    status = event.status
                case Chunk():
                    parts.append(event.data)
                case Finished():
                    usage = event.usage
        return Answer(status, b"".join(parts), usage)

    async def greedy(self, text: str, adapter: AdapterRef | None, tokens: int = 24) -> tuple[list[int], list[int]]:
        """Prompt and answer as token ids."""
        body = {"prompt": text, "max_tokens": tokens, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
        choice = (await self.ask(TEXT, body, adapter)).json["choices"][0]
        return list(choice["prompt_token_ids"]), tokens_of(choice)

    async def hold(self, *adapters: AdapterRef) -> None:
        """Exactly these adapters in places."""
        placed = [ref for ref in self.adapters if self.engine._adapters.placed(ref.digest)]  # type: ignore[union-attr]
        for ref in placed:
            if ref not in adapters:
                await self.engine.drop(ref.digest)
        for ref in adapters:
            await self.engine.stage(ref)
            await self.engine.place(ref, None)

    def unfinished(self) -> int:
        return int(self.engine._engine.output_processor.get_num_unfinished_requests())

    async def held(self) -> tuple[int, int]:
        """How many adapters EngineCore has in host memory and in places."""
        host, placed = await self.engine._engine.engine_core.call_utility_async("held_adapters")
        return len(host), len(placed)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("chat")
    base = chat_fixtures.write_base(folder / "base")
    adapters = [
        chat_fixtures.write_adapter(folder / f"adapter-{i}", 100 + i, rank=8 if i % 2 else 16) for i in range(6)
    ]
    oracle = Oracle(base, adapters)  # before the load: its OpenMP threads must not disturb the fork
    bench = Bench(VllmEngine(), base, adapters, oracle)
    loaded = await bench.engine.load(chat_fixtures.recipe(base), base, "cpu", bench.progress.append)
    assert loaded.kv_cache_bytes == 64 << 20
    assert loaded.context_length == chat_fixtures.CONTEXT
    assert loaded.resident_bytes > loaded.weights_bytes > 0
    yield bench
    await bench.engine.close()
    await bench.engine.close()
    with pytest.raises(EngineFailed):
        await bench.engine.ping()


async def test_progress_goes_up_to_ready(bench: Bench) -> None:
    fractions = [progress.fraction for progress in bench.progress]
    assert fractions == sorted(fractions)
    assert bench.progress[-1] == Progress(phase="ready", fraction=1.0)
    assert [p.phase for p in bench.progress] == ["importing", "starting", "weights", "warming", "ready"]


async def test_engine_core_has_its_threads_and_watches_its_slot(bench: Bench) -> None:
    compute, python, _ = await bench.engine._engine.engine_core.call_utility_async("process_facts")
    assert compute == 1, "a tiny model computes in one thread"
    assert python >= 4, "vLLM's two socket threads, the watch and the main one"


async def test_a_mixed_batch_equals_transformers_and_peft(bench: Bench) -> None:
    await bench.hold(*bench.adapters[:PLACES])
    asked = [(f"{word} {i}", ref) for i, word in enumerate(("hello", "what is", "a longer prompt than the others"))
             for ref in (None, *bench.adapters[:PLACES])]  # fmt: skip
    answers = await asyncio.gather(*(bench.greedy(text, ref) for text, ref in asked))
    for (text, ref), (prompt, answer) in zip(asked, answers, strict=True):
        assert bench.oracle.agrees(ref, prompt, answer), (text, ref)
    others = [
        bench.oracle.agrees(None, prompt, answer)
        for (_, ref), (prompt, answer) in zip(asked, answers, strict=True)
        if ref
    ]
    assert not any(others), "an adapter's answer must not pass for the base's"


async def test_base_and_adapter_alone_equal_the_mixed_batch(bench: Bench) -> None:
    await bench.hold(*bench.adapters[:PLACES])
    who = (None, *bench.adapters[:PLACES])
    alone = [await bench.greedy("alone or not", ref) for ref in who]
    mixed = await asyncio.gather(*(bench.greedy("alone or not", ref) for ref in who))
    for ref, (prompt, one), (_, other) in zip(who, alone, mixed, strict=True):
        assert one == other or (bench.oracle.agrees(ref, prompt, one) and bench.oracle.agrees(ref, prompt, other))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": chat_nasty.HELLO, "max_tokens": 4}),
        (TEXT, {"prompt": "hi", "max_tokens": 4}),
        (RESPONSES, {"input": "hi", "max_output_tokens": 4}),
        (MESSAGES, {"messages": chat_nasty.HELLO, "max_tokens": 4}),
    ],
)
async def test_the_clients_name_is_shown(bench: Bench, path: str, body: dict[str, Any], stream: bool) -> None:
    ref = bench.adapters[0]
    await bench.hold(ref)
    answer = await bench.ask(path, {**body, "stream": stream}, ref)
    assert answer.status == 200
    assert b'"model":"my name"' in answer.data
    assert ref.digest.encode() not in answer.data
    assert answer.usage.completion_tokens == 4


async def test_count_and_tokenize(bench: Bench) -> None:
    count = await bench.ask(MESSAGES + "/count_tokens", {"messages": chat_nasty.HELLO})
    tokens = (await bench.ask("/tokenize", {"messages": chat_nasty.HELLO})).json["tokens"]
    assert count.json["input_tokens"] == len(tokens)
    assert "hi" in (await bench.ask("/detokenize", {"tokens": tokens})).json["prompt"]


async def test_counts_equal_vllms_own(bench: Bench) -> None:
    for body in (
        {"prompt": "counts", "max_tokens": 7},
        {"prompt": ["one", "another one"], "max_tokens": 5, "n": 3, "temperature": 1.0},
        {"prompt": "x" * 300, "max_tokens": 3},
        {"prompt": "x" * 300, "max_tokens": 3},
        {"prompt": "with a stop", "max_tokens": 50, "stop": ["a", "e", "i"], "temperature": 1.0, "seed": 3},
    ):
        answer = await bench.ask(TEXT, {"ignore_eos": True, **body})
        reported = answer.json["usage"]
        assert answer.usage.prompt_tokens == reported["prompt_tokens"]
        assert answer.usage.completion_tokens == reported["completion_tokens"]
    assert (await bench.ask(TEXT, {"prompt": "x" * 300, "max_tokens": 1})).usage.cached_tokens >= 128


async def test_usage_is_reported_only_where_it_was_asked_for(bench: Bench) -> None:
    body = {"messages": chat_nasty.HELLO, "max_tokens": 3, "stream": True}
    plain = await bench.ask(CHAT, body)
    asked = await bench.ask(CHAT, {**body, "stream_options": {"include_usage": True}})
    assert all(not event.get("usage") for event in plain.events)
    assert asked.events[-1]["usage"]["completion_tokens"] == asked.usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_cancelled_task_aborts_in_the_engine(bench: Bench, stream: bool, n: int) -> None:
    body = {"prompt": "on and on", "max_tokens": 500, "n": n, "stream": stream, "ignore_eos": True, "temperature": 1.0}
    call = bench.begin(TEXT, body)
    seen = asyncio.Event()

    async def read() -> None:
        async for event in call:
            if isinstance(event, Chunk):
                seen.set()

    task = asyncio.create_task(read())
    if stream:
        await seen.wait()
    while call.usage.completion_tokens < 5:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.unfinished() == 0
    usage = call.usage
    assert usage.prompt_tokens == len("on and on")
    assert 5 <= usage.completion_tokens < 500 * n
    await bench.engine.ping()
    assert call.usage == usage, "nothing was computed after the abort"


async def test_a_closed_call_is_aborted_too(bench: Bench) -> None:
    call = bench.begin(TEXT, {"prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True})
    await anext(call)
    await call.aclose()
    assert bench.unfinished() == 0


async def test_an_unplaced_adapter_is_refused_never_the_base(bench: Bench) -> None:
    await bench.hold()
    ref = bench.adapters[0]
    with pytest.raises(EngineFailed):
        await bench.ask(TEXT, {"prompt": "x", "max_tokens": 1}, ref)
    await bench.engine.stage(ref)
    with pytest.raises(EngineFailed):
        await bench.ask(TEXT, {"prompt": "x", "max_tokens": 1}, ref)
    await bench.engine.place(ref, None)
    for body in (b'{"prompt": "x"}', b'{"prompt": "x", "model": "tiny"}', b'{"prompt": "x", "model": null}'):
        with pytest.raises(EngineFailed):
            await bench.ask(TEXT, body, ref)
    assert (await bench.ask(TEXT, {"prompt": "x", "max_tokens": 1}, ref)).status == 200


async def test_an_adapter_that_vllm_knows_but_nobody_placed_fails_that_request_only(bench: Bench) -> None:
    from vllm.lora.request import LoRARequest

    names = bench.engine._app.state.openai_serving_models.lora_requests
    ref = bench.adapters[5]
    names[ref.digest] = LoRARequest(ref.digest, 777, ref.path)
    stream = asyncio.create_task(bench.greedy("a bystander", None, 100))
    try:
        body = {"model": ref.digest, "prompt": "x", "max_tokens": 4}
        path = HttpCall(path=TEXT, body=json.dumps(body).encode(), served=ref.digest, shown="x", adapter=ref)
        bench.engine._adapters._held[ref.digest] = type(  # type: ignore[union-attr]
            next(iter(bench.engine._adapters._held.values()))  # type: ignore[union-attr]
        )(777, True)
        with pytest.raises(RoundhouseError):
            async for _ in bench.engine.call(path):
                pass
    finally:
        del names[ref.digest], bench.engine._adapters._held[ref.digest]  # type: ignore[union-attr]
    prompt, answer = await stream
    assert bench.oracle.agrees(None, prompt, answer)
    await bench.engine.ping()


async def test_places_are_counted_and_used_adapters_stay(bench: Bench) -> None:
    await bench.hold(*bench.adapters[:PLACES])
    newcomer = bench.adapters[4]
    await bench.engine.stage(newcomer)
    with pytest.raises(Conflict):
        await bench.engine.place(newcomer, None)
    busy = bench.adapters[0]
    call = bench.begin(TEXT, {"prompt": "x", "max_tokens": 400, "stream": True, "ignore_eos": True}, busy)
    await anext(call)
    for refused in (bench.engine.place(newcomer, busy.digest), bench.engine.drop(busy.digest)):
        with pytest.raises(Conflict):
            await refused
    await call.aclose()
    await bench.engine.place(newcomer, busy.digest)
    prompt, answer = await bench.greedy("who is it", newcomer)
    assert bench.oracle.agrees(newcomer, prompt, answer)
    with pytest.raises(EngineFailed):
        await bench.greedy("who is it", busy)
    assert await bench.held() == (PLACES + 1, PLACES)


async def test_places_change_under_running_streams(bench: Bench) -> None:
    await bench.hold(*bench.adapters[:3])
    watched = [asyncio.create_task(bench.greedy("keep on", ref, 200)) for ref in (None, *bench.adapters[:3])]
    for _ in range(5):
        for ref in bench.adapters[3:]:
            await bench.engine.stage(ref)
            await bench.engine.place(ref, None)
            prompt, answer = await bench.greedy("quick", ref, 4)
            assert bench.oracle.agrees(ref, prompt, answer)
            await bench.engine.drop(ref.digest)
    for ref, task in zip((None, *bench.adapters[:3]), watched, strict=True):
        prompt, answer = await task
        assert bench.oracle.agrees(ref, prompt, answer)
    assert await bench.held() == (3, 3)


async def test_new_weights_never_meet_old_cache(bench: Bench, tmp_path: Path) -> None:
    await bench.hold()
    text = "the same long prompt again and again " * 8
    for seed in (7, 8, 9):
        ref = chat_fixtures.write_adapter(tmp_path / "same-folder", seed)
        await bench.engine.stage(ref)
        await bench.engine.place(ref, None)
        prompt, answer = await bench.greedy(text, ref)
        assert Oracle(bench.base, [ref]).agrees(ref, prompt, answer)
        await bench.engine.drop(ref.digest)
    assert await bench.held() == (0, 0)


def _bad_adapters(folder: Path) -> dict[str, AdapterRef]:
    import torch

    prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    hidden = chat_fixtures.HIDDEN
    pair = {prefix + "A.weight": torch.ones(8, hidden), prefix + "B.weight": torch.ones(hidden, 8)}
    changes: dict[str, dict[str, torch.Tensor]] = {
        "nan": {prefix + "A.weight": pair[prefix + "A.weight"] * float("nan")},
        "infinite": {prefix + "B.weight": pair[prefix + "B.weight"] * float("inf")},
        "input width": {prefix + "A.weight": torch.ones(8, hidden // 2)},
        "output width": {prefix + "B.weight": torch.ones(hidden + 1, 8)},
        "halves of two ranks": {prefix + "B.weight": torch.ones(hidden, 4)},
        "half": {"base_model.model.model.layers.0.self_attn.x_proj.lora_A.weight": torch.ones(8, hidden)},
        "head": {
            "base_model.model.lm_head.lora_A.weight": torch.ones(8, hidden),
            "base_model.model.lm_head.lora_B.weight": torch.ones(chat_fixtures.VOCABULARY, 8),
        },
        "embedding": {
            "base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(8, chat_fixtures.VOCABULARY),
            "base_model.model.model.embed_tokens.lora_embedding_B": torch.ones(hidden, 8),
        },
    }
    made = {name: chat_fixtures.write_adapter(folder / name, 50, change=change) for name, change in changes.items()}
    made["too many layers"] = chat_fixtures.write_adapter(folder / "layers", 51, layers=3)
    made["rank over the limit"] = chat_fixtures.write_adapter(folder / "rank", 52, rank=32)
    for name, spoil in {"no weights": "adapter_model.safetensors", "no config": "adapter_config.json"}.items():
        made[name] = chat_fixtures.write_adapter(folder / name, 53)
        (folder / name / spoil).unlink()
    made["cut short"] = chat_fixtures.write_adapter(folder / "cut", 54)
    file = folder / "cut" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    return made


async def test_bad_adapters_are_refused_and_leave_nothing(bench: Bench, tmp_path: Path) -> None:
    await bench.hold(bench.adapters[0])
    watched = asyncio.create_task(bench.greedy("undisturbed", bench.adapters[0], 200))
    for name, ref in _bad_adapters(tmp_path).items():
        with pytest.raises(Unfit) as refused:
            await bench.engine.stage(ref)
        assert refused.value.faults, name
        with pytest.raises(EngineFailed):
            await bench.engine.place(ref, None)
    prompt, answer = await watched
    assert bench.oracle.agrees(bench.adapters[0], prompt, answer)
    assert await bench.held() == (1, 1)


async def test_files_may_go_once_an_adapter_is_staged(bench: Bench, tmp_path: Path) -> None:
    await bench.hold()
    ref = chat_fixtures.write_adapter(tmp_path / "gone", 60)
    oracle = Oracle(bench.base, [ref])
    await bench.engine.stage(ref)
    (tmp_path / "gone" / "adapter_model.safetensors").write_bytes(b"")
    await bench.engine.place(ref, None)
    prompt, answer = await bench.greedy("still there", ref)
    assert oracle.agrees(ref, prompt, answer)
    await bench.engine.drop(ref.digest)


@pytest.mark.parametrize("case", chat_nasty.REFUSED)
async def test_nasty_bodies_are_refused(bench: Bench, case: str) -> None:
    path, changes = chat_nasty.REFUSED[case]
    try:
        status = (await bench.ask(path, chat_nasty.body(path, changes, "tiny"))).status
    except RoundhouseError as error:
        status = error.status
    assert 400 <= status < 500
    assert bench.unfinished() == 0


@pytest.mark.parametrize("case", chat_nasty.ANSWERED)
async def test_odd_bodies_are_answered(bench: Bench, case: str) -> None:
    path, changes = chat_nasty.ANSWERED[case]
    assert (await bench.ask(path, chat_nasty.body(path, changes, "tiny"))).status == 200


@pytest.mark.parametrize("case", chat_nasty.RAW)
async def test_bytes_that_are_no_request(bench: Bench, case: str) -> None:
    try:
        status = (await bench.ask(CHAT, chat_nasty.RAW[case])).status
    except RoundhouseError as error:
        status = error.status
    assert 400 <= status < 500


async def test_other_paths_are_not_there(bench: Bench) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models", "/metrics", "/sleep"):
        with pytest.raises(NotFound):
            await bench.ask(path, {})


async def test_the_engine_lives_after_all_this(bench: Bench) -> None:
    await bench.engine.ping()
    assert bench.unfinished() == 0
    prompt, answer = await bench.greedy("and at the end", None)
    assert bench.oracle.agrees(None, prompt, answer)
