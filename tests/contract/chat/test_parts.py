"""The small parts of the chat engine, without vLLM's engine: settings, names, exchange, meter, fork."""

import asyncio
import contextvars
import json
import multiprocessing
import os
import signal
import socket
import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import Environment, TemplateSyntaxError

from models.chat import processes, settings
from models.chat.answers.fitting import Renamer
from models.chat.asgi import BUFFER, Exchange
from models.chat.requests.limits import check_size
from models.chat.requests.request import ChatRequest
from models.chat.vllm import launch
from models.chat.vllm.accounting import METER, CallEnded, UsageMeter, meter_requests
from models.estimate import estimate
from models.messages import Usage
from registry.bounds import Bounds
from registry.errors import BadRequest, EngineFailed, TooLarge, Unfit
from registry.recipes.definition import Parallel
from tests.contract.chat import fixtures as chat_fixtures


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    config = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "vocab_size": 300,
    }
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    return folder


# --- settings ------------------------------------------------------------------------------------------------------
@pytest.mark.real
def test_a_recipe_becomes_vllms_arguments(base: Path) -> None:
    recipe = chat_fixtures.recipe(
        base, tool_call_parser="hermes", enable_auto_tool_choice=True, enable_prefix_caching=False, seed=3
    )
    parsed = settings.arguments(recipe, base, "cpu", launch.parser())
    assert (parsed.model, parsed.served_model_name) == (str(base), ["tiny"])
    assert (parsed.max_model_len, parsed.max_num_seqs, parsed.max_num_batched_tokens) == (512, 18, 1024)
    assert (parsed.enable_lora, parsed.max_loras, parsed.max_cpu_loras, parsed.max_lora_rank) == (True, 4, 16, 16)
    assert parsed.kv_cache_memory_bytes == 64 << 20
    assert parsed.enforce_eager
    assert (parsed.tool_call_parser, parsed.enable_auto_tool_choice) == ("hermes", True)
    assert (parsed.enable_prefix_caching, parsed.seed) == (False, 3)


@pytest.mark.real
def test_every_fault_of_the_flags_is_named(base: Path) -> None:
    flags = {"max_model_len": 5, "api_key": "x", "enforce-eagre": 1, "worker_extension_cls": "os"}
    with pytest.raises(Unfit) as refused:
        settings.arguments(chat_fixtures.recipe(base, **flags), base, "cpu", launch.parser())
    assert len(refused.value.faults) == len(flags)
    assert "context_length" in refused.value.faults[0]
    assert refused.value.faults[2] == "enforce-eagre: this vLLM has no such flag; write enforce_eager"
    assert all(fault in refused.value.message for fault in refused.value.faults), "the log has only the message"


@pytest.mark.real
def test_a_value_that_vllm_does_not_accept_is_refused(base: Path) -> None:
    with pytest.raises(Unfit, match="seed"):
        settings.arguments(chat_fixtures.recipe(base, seed="x"), base, "cpu", launch.parser())


@pytest.mark.real
def test_an_architecture_that_is_wrong_on_a_cpu_is_not_loaded_there(base: Path, tmp_path: Path) -> None:
    """Also with a recipe written by hand. On a CPU, vLLM chooses ERNIE's experts without their bias."""
    config = json.loads((base / "config.json").read_text())
    for more in ({"kv_lora_rank": 32, "qk_rope_head_dim": 16}, {"architectures": ["Ernie4_5_MoeForCausalLM"]}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **more}))
        with pytest.raises(Unfit, match="Serve it on a GPU") as refused:
            settings.arguments(chat_fixtures.recipe(tmp_path), tmp_path, "cpu", launch.parser())
        assert refused.value.code == "not_on_cpu"
        on_gpu = chat_fixtures.recipe(tmp_path).model_copy(update={"dtype": "bfloat16"})  # adapters need 16 bits there
        settings.arguments(on_gpu, tmp_path, "cuda:0", launch.parser())


@pytest.mark.real
@pytest.mark.parametrize(
    ("more", "caches"),
    [
        ({"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["mamba", "attention"]}, False),
        ({"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["attention"] * 2}, None),
        ({"architectures": ["FalconH1ForCausalLM"]}, False),
        ({}, None),
    ],
)
def test_no_prefix_is_cached_where_a_cpu_keeps_no_earlier_states(
    more: dict[str, Any], caches: bool | None, base: Path, tmp_path: Path
) -> None:
    """A prompt of 290 tokens ended the engine of a Granite 4.0-H and of a Falcon-H1."""
    config = json.loads((base / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **more}))
    recipe = chat_fixtures.recipe(tmp_path)
    assert settings.arguments(recipe, tmp_path, "cpu", launch.parser()).enable_prefix_caching is caches


@pytest.mark.real
def test_the_context_is_limited_to_the_positions_that_vllm_has(base: Path, tmp_path: Path) -> None:
    """For a dynamically scaled context it accepts 4 x 2048, but has 2048."""
    config = json.loads((base / "config.json").read_text())
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    recipe = chat_fixtures.recipe(tmp_path)
    for requested, effective in ((None, 2048), (512, 512), (2048, 2048)):
        expected = recipe.model_copy(update={"context_length": requested})
        assert settings.arguments(expected, tmp_path, "cpu", launch.parser()).max_model_len == effective
    with pytest.raises(Unfit, match="2,048 positions") as refused:
        settings.arguments(recipe.model_copy(update={"context_length": 2049}), tmp_path, "cpu", launch.parser())
    assert refused.value.param == "context_length"


@pytest.mark.real
def test_the_default_kv_cache_is_the_one_that_the_estimate_counts(tmp_path: Path) -> None:
    """Eight full contexts of 512 tokens in float32, the dtype of the fixture's recipe."""
    base = chat_fixtures.write_base(tmp_path / "base")
    recipe = chat_fixtures.recipe(base)
    recipe = recipe.model_copy(update={"memory": recipe.memory.model_copy(update={"kv_cache": None})})
    kv_cache = settings.arguments(recipe, base, "cpu", launch.parser()).kv_cache_memory_bytes
    assert int(kv_cache) == estimate(recipe, base, "cpu").kv_cache == 2 * 2 * chat_fixtures.KV * 4 * 512 * 8


def test_a_load_that_fails_at_its_template_says_so() -> None:
    """The message used to be only "unexpected '}'"."""
    with pytest.raises(TemplateSyntaxError) as broken:
        Environment().parse("{{ message }")
    assert launch.describe_failure(broken.value) == "its chat template is no Jinja template: unexpected '}'"
    assert launch.describe_failure(ValueError("other")) == "other"
    missing = ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
    assert launch.describe_failure(missing) == "it needs the Python package torchvision, which is not installed here"
    assert launch.describe_failure(TimeoutError()) == "TimeoutError", "errors without a text have a name"


# --- guard and names -----------------------------------------------------------------------------------------------
def test_the_model_is_read_as_vllm_reads_it() -> None:
    def model(body: bytes) -> str | None:
        return ChatRequest("/v1/completions", body).model

    assert model(b'{"model": "a", "x": {"model": "b"}}') == "a"
    assert model(b'{"model": "a", "model": "b"}') == json.loads('{"model": "a", "model": "b"}')["model"]
    assert model(b"{}") is None
    for bad in (b"", b"[]", b'{"model": 5}', b'{"x": NaN}', b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        with pytest.raises(BadRequest):
            model(bad)


def test_tokenizing_is_bounded() -> None:
    check_size(ChatRequest("/tokenize", b"x" * (64 << 10)), 512, Bounds())
    with pytest.raises(TooLarge):
        check_size(ChatRequest("/tokenize", b"x" * ((64 << 10) + 1)), 512, Bounds())
    check_size(ChatRequest("/v1/completions", b"x" * (1 << 20)), 512, Bounds())


def test_names_are_replaced_only_where_they_are_names() -> None:
    rename = Renamer("sha256:" + "0" * 64, 'my "näme"')
    text = json.dumps({"model": "sha256:" + "0" * 64, "content": 'he said "model":"sha256:' + "0" * 64 + '"'})
    for data in (text.encode(), text.replace('": "', '":"').encode()):
        renamed = json.loads(rename(data))
        assert renamed["model"] == 'my "näme"'
        assert renamed["content"] == json.loads(data)["content"]


# --- exchange ------------------------------------------------------------------------------------------------------
def _app(parts: int, sent: list[int] | None = None, fail: Exception | None = None) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"body"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", b"text/x")]})
        for i in range(parts):
            await send({"type": "http.response.body", "body": b"%d," % i, "more_body": True})
            if sent is not None:
                sent.append(i)
        if fail:
            raise fail
        if parts > BUFFER:
            assert (await receive())["type"] == "http.disconnect"

    return app


def _exchange(app: Any) -> Exchange:
    return Exchange(app, "/x", b"body", contextvars.copy_context(), {})


async def test_parts_of_an_answer_arrive_whole_and_in_order() -> None:
    exchange = _exchange(_app(5))
    assert await exchange.start()
    assert (exchange.status, exchange.content_type) == (200, "text/x")
    parts = []
    while (part := await exchange.part()) is not None:
        parts.append(part)
    assert b"".join(parts) == b"0,1,2,3,4,"
    assert not exchange.running


async def test_a_slow_reader_holds_the_application_back() -> None:
    sent: list[int] = []
    exchange = _exchange(_app(BUFFER * 3, sent))
    await exchange.start()
    for _ in range(BUFFER * 4):
        await asyncio.sleep(0)
    assert len(sent) < BUFFER
    exchange.leave()
    await exchange.ended(within=10)
    assert len(sent) < BUFFER + 2, "a sender to a closed reader notices at once"


async def test_an_error_of_the_application_reaches_the_reader() -> None:
    async def read() -> None:
        exchange = _exchange(_app(1, fail=ValueError("broken")))
        await exchange.start()
        while await exchange.part() is not None:
            pass

    with pytest.raises(ValueError, match="broken"):
        await read()


async def test_a_failure_from_outside_ends_the_reader_at_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    exchange = _exchange(app)
    waiting = asyncio.create_task(exchange.start())
    await asyncio.sleep(0)
    exchange.fail(EngineFailed("gone"))
    with pytest.raises(EngineFailed):
        await waiting
    await exchange.ended(within=0)
    assert not exchange.running


# --- meter ---------------------------------------------------------------------------------------------------------
class _Processor:
    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any, parent: Any, index: int) -> None:
        detokenizer = SimpleNamespace(num_output_tokens=lambda: 10 + index)
        self.request_states[request.request_id] = SimpleNamespace(
            request_id=request.request_id,
            parent_req=parent,
            request_index=index,
            prompt_len=100,
            num_cached_tokens=64,
            detokenizer=detokenizer,
        )


async def test_counts_belong_to_the_call_that_started_the_request() -> None:
    processor, mine, other = _Processor(), UsageMeter(), UsageMeter()
    meter_requests(processor)

    async def processes(name: str, parent: Any = None, index: int = 0) -> None:
        processor.add_request(SimpleNamespace(request_id=name), parent, index)

    async def call(meter: UsageMeter, *requests: tuple[str, Any, int]) -> None:
        METER.set(meter)
        await asyncio.gather(*(processes(*request) for request in requests))

    parent = object()
    await asyncio.gather(
        asyncio.create_task(call(mine, ("a0", parent, 0), ("a1", parent, 1), ("b", None, 0))),
        asyncio.create_task(call(other, ("c", None, 0))),
    )
    await processes("nobody's")
    assert mine.usage() == Usage(prompt_tokens=200, completion_tokens=10 + 11 + 10, cached_tokens=128)
    assert other.usage() == Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=64)
    mine.closed = True
    with pytest.raises(CallEnded):
        await asyncio.create_task(call(mine, ("late", None, 0)))
    assert "late" not in processor.request_states


# --- fork ----------------------------------------------------------------------------------------------------------
def _look(pipe: Any) -> None:
    import torch

    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    sockets = [n for n in numbers if _is_socket(n)]
    product = torch.ones(700, 700) @ torch.ones(700, 700)  # large enough for OpenMP's threads
    pipe.send((sockets, signal.set_wakeup_fd(-1), float(product[0, 0])))


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False


async def test_a_fork_from_a_new_thread_computes_and_holds_no_sockets() -> None:
    import torch

    assert float((torch.ones(700, 700) @ torch.ones(700, 700))[0, 0]) == 700.0
    left, right = socket.socketpair()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, lambda: None)
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)  # a duplex one is a socket, and closed in the child
    try:
        process: Any = await processes.in_new_thread(lambda: _started(context.Process(target=_look, args=(theirs,))))
        assert await asyncio.to_thread(mine.poll, 60)
        sockets, wakeup, product = mine.recv()
        await asyncio.to_thread(process.join, 60)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR2)
        left.close()
        right.close()
    assert product == 700.0
    assert wakeup == -1
    assert len(sockets) == 0


def _started(process: Any) -> Any:
    process.start()
    return process


async def test_a_cancelled_start_still_ends_and_its_error_is_not_lost() -> None:
    gate = threading.Event()
    task = asyncio.create_task(processes.in_new_thread(gate.wait))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ZeroDivisionError):
        await processes.in_new_thread(lambda: 1 // 0)


async def test_a_start_that_is_cancelled_in_the_moment_of_its_end_is_cancelled() -> None:
    gate = threading.Event()
    task = asyncio.create_task(processes.in_new_thread(gate.wait))
    await asyncio.sleep(0.01)
    gate.set()
    time.sleep(0.2)  # noqa: ASYNC251  the loop stands still until the thread has its result
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.real
def test_only_on_a_gpu_and_with_one_worker_vllm_is_made_able_to_sleep(tmp_path: Path) -> None:
    base = chat_fixtures.write_base(tmp_path / "base")

    def able(device: str, sleep: str = "auto", tensor: int = 1) -> bool:
        recipe = chat_fixtures.recipe(base)
        residency = recipe.residency.model_copy(update={"sleep": sleep})
        changes = {"residency": residency, "dtype": "bfloat16", "parallel": Parallel(tensor=tensor)}
        changed = recipe.model_copy(update=changes)
        return bool(settings.arguments(changed, base, device, launch.parser()).enable_sleep_mode)

    assert able("cuda:0")
    assert not able("cuda:0", tensor=2)
    assert not able("cuda:0", sleep="never")
    assert not able("cpu")
    assert not launch.sleep_mode_available(), "this is the build for CPUs"
