"""Adapters in the chat engine on the real vLLM: the right weights, places, and refusals that leave nothing behind."""

import asyncio
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from models.chat import warmup
from models.chat.adapters import EngineAdapters
from models.chat.asgi import AsgiApp, whole_answer
from models.chat.requests.request import CHAT, COUNT_TOKENS, INPUT_TOKENS, MESSAGES, RESPONSES
from models.chat.vllm import core, launch
from models.messages import AdapterRef, HttpCall
from registry.errors import Conflict, EngineFailed, RoundhouseError, Unfit
from tests.contract.chat import fixtures as chat_fixtures
from tests.contract.chat.nasty import TEXT
from tests.contract.chat.oracle import Oracle, tokens_of
from tests.contract.chat_engine.bench import PLACES, Bench

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]


async def test_a_mixed_batch_equals_transformers_and_peft(bench: Bench) -> None:
    await bench.hold(*bench.adapters[:PLACES])
    requested = [(f"{word} {i}", ref) for i, word in enumerate(("hello", "what is", "a longer prompt than the others"))
             for ref in (None, *bench.adapters[:PLACES])]  # fmt: skip
    answers = await asyncio.gather(*(bench.greedy(text, ref) for text, ref in requested))
    for (text, ref), (prompt, answer) in zip(requested, answers, strict=True):
        assert bench.oracle.agrees(ref, prompt, answer), (text, ref)
    others = [
        bench.oracle.agrees(None, prompt, answer)
        for (_, ref), (prompt, answer) in zip(requested, answers, strict=True)
        if ref
    ]
    assert not any(others), "an adapter's answer differs from the base's"


async def test_base_and_adapter_alone_equal_the_mixed_batch(bench: Bench) -> None:
    await bench.hold(*bench.adapters[:PLACES])
    who = (None, *bench.adapters[:PLACES])
    alone = [await bench.greedy("alone or not", ref) for ref in who]
    mixed = await asyncio.gather(*(bench.greedy("alone or not", ref) for ref in who))
    for ref, (prompt, one), (_, other) in zip(who, alone, mixed, strict=True):
        assert one == other or (bench.oracle.agrees(ref, prompt, one) and bench.oracle.agrees(ref, prompt, other))


async def test_an_unplaced_adapter_is_refused_and_never_answered_by_the_base(bench: Bench) -> None:
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


async def test_an_adapter_that_vllm_knows_but_that_has_no_place_fails_only_its_request(bench: Bench) -> None:
    from vllm.lora.request import LoRARequest

    names = bench.engine._app.state.openai_serving_models.lora_requests
    ref = bench.adapters[5]
    names[ref.digest] = LoRARequest(ref.digest, 777, ref.path)
    stream = asyncio.create_task(bench.greedy("a bystander", None, 100))
    try:
        body = {"model": ref.digest, "prompt": "x", "max_tokens": 4}
        path = HttpCall(path=TEXT, body=json.dumps(body).encode(), served=ref.digest, display_name="x", adapter=ref)
        bench.engine._adapters._staged[ref.digest] = type(  # type: ignore[union-attr]
            next(iter(bench.engine._adapters._staged.values()))  # type: ignore[union-attr]
        )(777, True)
        with pytest.raises(RoundhouseError):
            async for _ in bench.engine.call(path):
                pass
    finally:
        del names[ref.digest], bench.engine._adapters._staged[ref.digest]  # type: ignore[union-attr]
    prompt, answer = await stream
    assert bench.oracle.agrees(None, prompt, answer)
    await bench.engine.ping()
    assert launch.cause(bench.engine._engine) is None, "if the engine ends later, that is not the cause"


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


async def test_a_swap_takes_the_engine_two_calls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further call would wait for the end of a step."""
    await bench.hold()
    await bench.engine.drop(bench.adapters[0].digest)
    adapters, requested = bench.engine._adapters, list[str]()
    assert adapters is not None
    call = adapters._call

    async def counted(what: Callable[..., Any], *arguments: str | int) -> list[str]:
        requested.append(what.__name__)
        return await call(what, *arguments)

    monkeypatch.setattr(adapters, "_call", counted)
    await bench.engine.stage(bench.adapters[0])
    await bench.engine.place(bench.adapters[0], None)
    assert requested == ["stage_adapter", "place_adapter"]


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
        assert refused.value.faults[0][:12] in refused.value.message, name
        assert ref.path not in refused.value.message
        with pytest.raises(EngineFailed):
            await bench.engine.place(ref, None)
    prompt, answer = await watched
    assert bench.oracle.agrees(bench.adapters[0], prompt, answer)
    assert await bench.held() == (1, 1)


async def test_files_may_be_deleted_once_an_adapter_is_staged(bench: Bench, tmp_path: Path) -> None:
    await bench.hold()
    ref = chat_fixtures.write_adapter(tmp_path / "gone", 60)
    oracle = Oracle(bench.base, [ref])
    await bench.engine.stage(ref)
    (tmp_path / "gone" / "adapter_model.safetensors").write_bytes(b"")
    await bench.engine.place(ref, None)
    prompt, answer = await bench.greedy("still there", ref)
    assert oracle.agrees(ref, prompt, answer)
    await bench.engine.drop(ref.digest)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
async def test_a_warm_up_for_a_gpu_runs_each_kernel_and_leaves_nothing(
    device: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request must be answered, because one that vLLM refuses compiles nothing, without an error."""
    await bench.hold()
    bodies: list[dict[str, Any]] = []
    answers: dict[int, tuple[int, bytes]] = {}
    beside: list[int] = []

    async def watched(app: AsgiApp, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        number = len(bodies)
        beside.append(number - len(answers))
        bodies.append(body)
        answers[number] = await whole_answer(app, path, body)
        return answers[number]

    monkeypatch.setattr(warmup, "whole_answer", watched)
    engine: Any = bench.engine
    recipe = chat_fixtures.recipe(bench.base)
    await engine._warm_up(Namespace(enable_lora=True), recipe, device)
    usual = len(warmup.REQUESTS)
    assert {status for status, _ in answers.values()} == {200}
    if device == "cpu":
        assert len(bodies) == usual
        return
    lengths = warmup.prompt_lengths(engine._engine.vllm_config)
    with_adapter, last = bodies[usual : usual + len(lengths)], bodies[usual + len(lengths) :]
    texts = [json.loads(answers[number][1]) for number in range(usual, len(bodies))]
    assert [text["usage"]["prompt_tokens"] for text in texts[: len(lengths)]] == lengths
    assert all(body["model"].startswith("sha256:") for body in with_adapter)
    beginnings = {tuple(body["prompt"][0][:5]) for body in with_adapter}
    assert len(beginnings) == len(lengths), "no prompt is in the prefix cache"
    assert [body.get("logprobs") for body in last] == [0, 2, 5, 10, 15, 20, None]
    assert not any(beside[usual:]), "in one step only the kernel for the most logprobs would compile"
    assert last[-1]["prompt_logprobs"] == 1, "the last, because these shorten the steps that follow"
    assert texts[-1]["choices"][0]["prompt_logprobs"]
    host, placed = await launch.ask(engine._engine, core.held_adapters)
    assert (host, placed) == ([], [])


async def test_a_warm_up_for_a_gpu_sends_prompts_together_where_one_is_too_short(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.hold()
    engine: Any = bench.engine
    answers: list[tuple[int, bytes]] = []

    async def watched(app: AsgiApp, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        answers.append(await whole_answer(app, path, body))
        return answers[-1]

    monkeypatch.setattr(warmup, "whole_answer", watched)
    await warmup.warm_up_adapters(engine._app, engine._adapters, [5], None, [30, 31, 32])
    assert [status for status, _ in answers] == [200, 200]
    usage = json.loads(answers[1][1])["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (30 + 31 + 32, 3 * 2)


async def test_a_model_that_cannot_be_warmed_up_with_an_adapter_starts_without(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.hold()
    engine: Any = bench.engine

    async def other(_: EngineAdapters) -> tuple[str, int, int]:
        return "a.layer.of.another.name", 8, 8

    monkeypatch.setattr(EngineAdapters, "a_layer", other)
    await warmup.warm_up_adapters(engine._app, engine._adapters, [5], None)
    assert await launch.ask(engine._engine, core.held_adapters) == [[], []]


async def test_the_last_request_of_a_warm_up_may_still_be_in_the_engine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.hold()
    engine: Any = bench.engine
    stock, refused = EngineAdapters.drop, []

    async def busy(adapters: EngineAdapters, digest: str) -> None:
        if not refused:
            refused.append(digest)
            raise Conflict("in use", code="adapter_in_use")
        await stock(adapters, digest)

    monkeypatch.setattr(EngineAdapters, "drop", busy)
    await warmup.warm_up_adapters(engine._app, engine._adapters, [5], None)
    assert len(refused) == 1
    assert await launch.ask(engine._engine, core.held_adapters) == [[], []]


OWN = "{% for message in messages %}{% generation %}~{{ message.content }}~{% endgeneration %}{% endfor %}{{ mood }}"


async def test_an_adapters_own_chat_template_writes_only_its_prompts(bench: Bench, tmp_path: Path) -> None:
    plain = bench.adapters[0]
    own = chat_fixtures.write_adapter(tmp_path, 100, rank=16)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "chat_template": OWN}))
    own = msgspec.structs.replace(own, digest="sha256:" + "7" * 64)
    await bench.hold(plain)
    await bench.engine.stage(own)
    await bench.engine.place(own, None)
    try:
        hello: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}
        chat = {**hello, "return_token_ids": True, "ignore_eos": True}
        answers = await asyncio.gather(*(bench.ask(CHAT, chat, ref) for ref in (own, plain, own, None)))
        assert all(answer.status == 200 for answer in answers), answers
        prompts = [answer.json["prompt_token_ids"] for answer in answers]
        assert prompts[0] == prompts[2]
        assert prompts[1] == prompts[3] != prompts[0]
        prompt, answer = answers[0].json["prompt_token_ids"], tokens_of(answers[0].json["choices"][0])
        assert prompt == bench.oracle.tokenizer.encode("~hello~", add_special_tokens=False)
        assert bench.oracle.agrees(plain, prompt, answer), "the same weights"
        counts = [
            (await bench.ask(path, body, own)).json[field]
            for path, body, field in (
                ("/tokenize", hello, "count"),
                (COUNT_TOKENS, {"messages": hello["messages"]}, "input_tokens"),
                (INPUT_TOKENS, {"input": "hello"}, "input_tokens"),
            )
        ]
        assert counts == [len("~hello~")] * 3
        response = (await bench.ask(RESPONSES, {"input": "hello", "max_output_tokens": 2}, own)).json
        message = (await bench.ask(MESSAGES, {"messages": hello["messages"], "max_tokens": 2}, own)).json
        assert response["usage"]["input_tokens"] == message["usage"]["input_tokens"] == len("~hello~")
        moody = await bench.ask(CHAT, {**chat, "chat_template_kwargs": {"mood": "!"}}, own)
        assert len(moody.json["prompt_token_ids"]) == len("~hello~!")
    finally:
        await bench.engine.drop(own.digest)
