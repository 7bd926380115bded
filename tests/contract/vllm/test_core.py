"""The patches to vLLM's EngineCore and adapter manager: the faults in a fresh copy, and their fixes."""

import json
import queue
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from models.chat.vllm import core as vllm_core
from models.chat.vllm import launch, variables
from models.chat.vllm.adapters import manager as vllm_manager
from models.chat.vllm.steps import budget
from tenants.caller import ServiceClass
from tests.contract.vllm.stock import stock

pytestmark = pytest.mark.real


class _Manager:
    """The part of vLLM's model manager that `add_adapter` uses."""

    def __init__(self, cached: int) -> None:
        self._registered_adapters = dict.fromkeys(range(1, cached + 1))
        self.lora_index_to_id: list[int | None] = [1]
        self.listed = 0

    def list_adapters(self) -> dict[int, Any]:
        self.listed += 1
        return dict(self._registered_adapters)

    def get_adapter(self, number: int) -> object:
        return self

    def activate_adapter(self, number: int) -> bool:
        return False


def test_a_step_does_not_list_all_cached_adapters() -> None:
    from vllm.lora.request import LoRARequest

    request = LoRARequest("x", 1, "/nowhere")
    fresh = stock("vllm.lora.worker_manager").LRUCacheWorkerLoRAManager
    manager = fresh.__new__(fresh)
    manager._adapter_manager = _Manager(1000)
    manager.add_adapter(request)
    assert manager._adapter_manager.listed == 1, "vLLM's own code copies the whole table for each adapter of a step"
    assert vllm_manager._add_adapter(manager, request)
    assert manager._adapter_manager.listed == 1


def test_an_adapter_is_never_loaded_from_a_path() -> None:
    from vllm.lora.request import LoRARequest

    read: list[str] = []
    fresh = stock("vllm.lora.worker_manager").LRUCacheWorkerLoRAManager
    manager = fresh.__new__(fresh)
    manager._adapter_manager = _Manager(0)
    manager._load_adapter = lambda request: read.append(request.lora_path)
    request = LoRARequest("x", 5, "/some/where")
    with pytest.raises(AttributeError):
        manager.add_adapter(request)  # continues with the None from our reader
    assert read == ["/some/where"]
    with pytest.raises(vllm_manager.NotPlaced):
        vllm_manager._add_adapter(manager, request)
    assert read == ["/some/where"]


class _Core:
    model_executor: object = None
    input_queue: object

    def __init__(self, outcomes: dict[str, Any]) -> None:
        self.outcomes, self.requested = outcomes, [""]
        self.scheduler = SimpleNamespace(requests={})
        self.vllm_config = SimpleNamespace(lora_config=None)

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.requested.append(method)
        return [self.outcomes.get(method, ["done"])]

    def preprocess_add_request(self, request: Any) -> tuple[Any, int]:
        return request, 0


def test_vllms_own_intake_accepts_a_request_for_an_adapter_that_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker then loads from the request's path within a step, and an error there ends the engine."""
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    monkeypatch.delenv(variables.CRITICAL_TOKENS, raising=False)  # this core has no scheduler
    core = core_of(stock("vllm.v1.engine.core"))
    lora = LoRARequest("seven", 7, "/nowhere")
    request = EngineCoreRequest("r", [1, 2], None, SamplingParams(max_tokens=1), None, 0.0, lora, None, None)
    taken, _ = core.preprocess_add_request(request)
    assert taken.lora_request.lora_path == "/nowhere"
    fresh = stock("vllm.v1.engine.core")
    vllm_core.patch(fresh.EngineCore, lambda: None)
    core = core_of(fresh)
    with pytest.raises(vllm_core.UnknownAdapter, match="seven"):
        core.preprocess_add_request(request)
    vllm_core._placed(core).add(7)
    assert core.preprocess_add_request(request)[0].lora_request is lora


def core_of(module: ModuleType) -> Any:
    """Return an EngineCore without model and scheduler, which is enough for its intake."""
    core = module.EngineCore.__new__(module.EngineCore)
    core.mm_receiver_cache = core.request_block_hasher = None
    return core


@pytest.mark.parametrize("memory", [False, True])
def test_the_reason_of_a_failed_start_reaches_the_slot(
    memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own EngineCore raises in its process; the parent only gets 'initialization failed'."""
    cause, fault = tmp_path / "cause", MemoryError("no room") if memory else ValueError("bad flag")
    monkeypatch.setenv(variables.CAUSE, str(cause))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise fault

    fresh = stock("vllm.v1.engine.core")
    monkeypatch.setattr("vllm.plugins.load_general_plugins", fail)
    with pytest.raises(type(fault)):
        fresh.EngineCore(None, None, False)
    assert not cause.exists()
    begun: list[int] = []
    vllm_core.patch(fresh.EngineCore, lambda: begun.append(1))
    with pytest.raises(type(fault)):
        fresh.EngineCore(None, None, False)
    assert json.loads(cause.read_text()) == [int(memory), f"{type(fault).__name__}: {fault}"]
    assert begun == [1]


def test_a_request_for_an_adapter_that_is_not_placed_is_refused_at_the_intake() -> None:
    request = SimpleNamespace(lora_request=SimpleNamespace(lora_int_id=7, lora_name="seven"), priority=1)
    assert _Core({}).preprocess_add_request(request) == (request, 0), "vLLM's own intake accepts it"
    kind = type("Core", (_Core,), {})
    begun: list[int] = []
    vllm_core.patch(kind, lambda: begun.append(1))
    core = kind({"place_adapter": ["running"], "poll_adapter": ["done", "placed"]})
    assert begun == [1]
    base = SimpleNamespace(lora_request=None, priority=1)
    assert core.preprocess_add_request(base) == (base, 0)
    with pytest.raises(vllm_core.UnknownAdapter):
        core.preprocess_add_request(request)
    assert vllm_core.place_adapter(core, 7, 0) == ["running"]
    with pytest.raises(vllm_core.UnknownAdapter):
        core.preprocess_add_request(request)
    vllm_core.poll_adapter(core, 7)
    assert core.preprocess_add_request(request) == (request, 0)
    core.scheduler.requests["r"] = request
    assert vllm_core.drop_adapter(core, 7) == ["busy"]
    assert vllm_core.place_adapter(core, 8, 7) == ["busy"]
    assert core.requested[-1] == "poll_adapter", "a refused call changes nothing"
    core.scheduler.requests.clear()
    vllm_core.drop_adapter(core, 7)
    with pytest.raises(vllm_core.UnknownAdapter):
        core.preprocess_add_request(request)


class UniProcExecutor:
    """vLLM's name for an executor whose worker is in EngineCore's process."""


@pytest.mark.parametrize(
    ("ends", "expected_outcome"),
    [
        (lambda reading: reading.set_result("weights"), ["read"]),
        (lambda reading: reading.set_exception(ValueError("cut short\nand more")), ["failed", "cut short", "and more"]),
        (lambda reading: reading.cancel(), ["failed", "it was dropped while it was read"]),
    ],
)
def test_staging_is_answered_once_the_adapter_is_read(ends: Any, expected_outcome: list[str]) -> None:
    """vLLM's own dispatcher of utilities delays the answer until then, without blocking the loop."""
    from vllm.v1.engine import UtilityOutput
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.executor import uniproc_executor

    assert uniproc_executor.UniProcExecutor.__name__ == UniProcExecutor.__name__
    reading: Future[Any] = Future()
    core = _Core({"stage_adapter": ["running"]})
    core.model_executor, core.input_queue = UniProcExecutor(), None
    core.outcomes["reading_adapter"] = reading
    reported: list[Any] = []
    EngineCoreProc._invoke_utility_method(
        "stage_adapter", lambda: vllm_core.stage_adapter(core, 1, "/x"), UtilityOutput(1), reported.append
    )
    assert reported == []
    ends(reading)
    assert [output.result.result for output in reported] == [expected_outcome]


@pytest.mark.parametrize("outcome", [["done"], ["full"]])
def test_an_answer_that_is_known_is_not_delayed(outcome: list[str]) -> None:
    core = _Core({"stage_adapter": outcome})
    core.model_executor, core.input_queue = UniProcExecutor(), None
    assert vllm_core.stage_adapter(core, 1, "/x") == outcome


def test_workers_of_other_processes_are_polled() -> None:
    core = _Core({"stage_adapter": ["running"]})
    core.model_executor, core.input_queue = object(), None
    assert vllm_core.stage_adapter(core, 1, "/x") == ["running"]


@pytest.mark.parametrize(
    ("workers", "outcome"),
    [
        ([["done"], ["running"]], ["running"]),
        ([["running"], ["failed", "cut short"]], ["failed", "cut short"]),
        ([["done", "staged"], ["full"]], ["full"]),
        ([["done", "placed"], ["done", "placed"]], ["done", "placed"]),
    ],
)
def test_an_adapter_is_placed_once_all_workers_have_it(workers: list[list[str]], outcome: list[str]) -> None:
    core = _Core({})
    core.collective_rpc = lambda method, args=(): workers  # type: ignore[method-assign]
    assert vllm_core.poll_adapter(core, 7) == outcome
    assert (7 in vllm_core._placed(core)) is (outcome == ["done", "placed"])


def test_a_file_is_read_while_a_step_runs() -> None:
    """vLLM's loop handles calls between steps, but staging does not wait for it, and expects queued drops."""
    from vllm.v1.engine import EngineCoreRequestType
    from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState

    core: Any = EngineCoreProc.__new__(type("Core", (EngineCoreProc,), {vllm_core.METHOD: vllm_core._dispatch}))
    core.input_queue, core.output_queue = queue.Queue(), queue.Queue()
    core.shutdown_state, core.model_executor = EngineShutdownState.RUNNING, UniProcExecutor()
    reading: Future[Any] = Future()
    requested: list[tuple[str, Any]] = []

    def worker(method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        requested.append((method, args))
        return [reading if method == "reading_adapter" else ["running"]]

    core.collective_rpc = worker
    vllm_core._stage_at_once(core)
    utility = EngineCoreRequestType.UTILITY
    drop = (utility, (0, 1, vllm_core.METHOD, ["drop_adapter", [4]]))
    ping = (utility, (0, 2, "get_supported_tasks", []))
    other = (EngineCoreRequestType.ABORT, ["r"])
    for item in (drop, ping, (utility, (0, 3, vllm_core.METHOD, ["stage_adapter", [5, "/x"]])), other):
        core.input_queue.put_nowait(item)
    assert [core.input_queue.get_nowait() for _ in range(core.input_queue.qsize())] == [drop, ping, other]
    assert requested[0] == ("stage_adapter", (5, "/x", 1)), "one queued drop"
    assert core.output_queue.empty()
    reading.set_result("weights")
    client, outputs = core.output_queue.get_nowait()
    assert (client, outputs.utility_output.call_id, outputs.utility_output.result.result) == (0, 3, ["read"])


# --- shorter steps -------------------------------------------------------------------------------------------------
class _Time:
    """A clock and timers for `budget` that only advance by `pass_`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any, tuple[Any, ...]]] = []

    def monotonic(self) -> float:
        return self.now

    def timer(self, seconds: float, then: Any, arguments: tuple[Any, ...]) -> Any:
        def start() -> None:
            assert timer.daemon
            self.timers.append((self.now + seconds, then, arguments))

        timer = SimpleNamespace(start=start, daemon=False)
        return timer

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, then, arguments in due:
            then(*arguments)


@pytest.fixture
def budget_clock(monkeypatch: pytest.MonkeyPatch) -> _Time:
    clock = _Time()
    monkeypatch.setattr("models.chat.vllm.steps.budget.threading.Timer", clock.timer)
    monkeypatch.setattr("models.chat.vllm.steps.budget.time", clock)
    for variable in (variables.SWAP_TOKENS, variables.CRITICAL_TOKENS, variables.LOGPROBS_TOKENS):
        monkeypatch.delenv(variable, raising=False)
    return clock


def test_steps_are_shorter_while_adapters_are_staged(monkeypatch: pytest.MonkeyPatch, budget_clock: _Time) -> None:
    core = _Core({"stage_adapter": ["running"]})
    core.scheduler.max_num_scheduled_tokens = 8192
    vllm_core.stage_adapter(core, 5, "/x")
    assert (core.scheduler.max_num_scheduled_tokens, budget_clock.timers) == (8192, [])
    monkeypatch.setenv(variables.SWAP_TOKENS, "2048")
    vllm_core.stage_adapter(core, 5, "/x")
    budget_clock.pass_(budget.LINGER * 0.9)
    vllm_core.place_adapter(core, 5, 0)
    budget_clock.pass_(budget.LINGER * 0.9)
    assert core.scheduler.max_num_scheduled_tokens == 2048, "until the last one is done"
    budget_clock.pass_(budget.LINGER)
    assert (core.scheduler.max_num_scheduled_tokens, budget_clock.timers) == (8192, [])
    monkeypatch.setenv(variables.SWAP_TOKENS, "20480")
    vllm_core.place_adapter(core, 5, 0)
    assert core.scheduler.max_num_scheduled_tokens == 8192, "a step never becomes longer"


def test_steps_are_shorter_while_critical_requests_arrive(monkeypatch: pytest.MonkeyPatch, budget_clock: _Time) -> None:
    kind = type("Core", (_Core,), {})
    vllm_core.patch(kind, lambda: None)
    core = kind({})
    core.scheduler.max_num_scheduled_tokens = 8192
    monkeypatch.setenv(variables.CRITICAL_TOKENS, "1024")
    for service_class in (ServiceClass.BATCH, ServiceClass.INTERACTIVE):
        core.preprocess_add_request(SimpleNamespace(lora_request=None, priority=int(service_class)))
    assert core.scheduler.max_num_scheduled_tokens == 8192
    core.preprocess_add_request(SimpleNamespace(lora_request=None, priority=int(ServiceClass.CRITICAL)))
    assert core.scheduler.max_num_scheduled_tokens == 1024
    monkeypatch.setenv(variables.SWAP_TOKENS, "2048")
    vllm_core.place_adapter(core, 5, 0)
    assert core.scheduler.max_num_scheduled_tokens == 1024, "the shorter of the two bounds"
    budget_clock.pass_(budget.LINGER)
    assert core.scheduler.max_num_scheduled_tokens == 8192


class _Prompt:
    """A request whose prompt is partly read."""

    lora_request, priority, num_prompt_tokens = None, 1, 3000

    def __init__(self, prompt_logprobs: int | None) -> None:
        self.sampling_params = SimpleNamespace(prompt_logprobs=prompt_logprobs)
        self.num_computed_tokens, self.aborted = 0, False

    def is_finished(self) -> bool:
        return self.aborted


@pytest.mark.parametrize("end", ["read", "aborted", "gone"])
def test_steps_are_shorter_while_logprobs_of_a_prompt_are_computed(
    end: str, monkeypatch: pytest.MonkeyPatch, budget_clock: _Time
) -> None:
    """Because each token of a step takes 12 bytes for each token of the vocabulary then."""
    monkeypatch.setenv(variables.LOGPROBS_TOKENS, "170")
    kind = type("Core", (_Core,), {})
    vllm_core.patch(kind, lambda: None)
    core = kind({})
    core.scheduler.max_num_scheduled_tokens = 8192
    core.preprocess_add_request(_Prompt(None))
    assert (core.scheduler.max_num_scheduled_tokens, budget_clock.timers) == (8192, [])
    prompt = _Prompt(0)
    core.preprocess_add_request(prompt)
    for computed in (0, 0, 170, 2999):
        prompt.num_computed_tokens = computed
        budget_clock.pass_(budget.LINGER)
        assert core.scheduler.max_num_scheduled_tokens == 170
    if end == "read":
        prompt.num_computed_tokens = 3000
    prompt.aborted = end == "aborted"
    if end == "gone":
        del prompt
    budget_clock.pass_(budget.LINGER)
    assert (core.scheduler.max_num_scheduled_tokens, budget_clock.timers) == (8192, [])


def test_vllms_own_request_has_the_length_of_the_prompt_read_so_far(
    monkeypatch: pytest.MonkeyPatch, budget_clock: _Time
) -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    monkeypatch.setenv(variables.LOGPROBS_TOKENS, "170")
    fresh = stock("vllm.v1.engine.core")
    vllm_core.patch(fresh.EngineCore, lambda: None)
    core = core_of(fresh)
    core.scheduler = SimpleNamespace(max_num_scheduled_tokens=8192)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    request = EngineCoreRequest("r", [1, 2], None, params, None, 0.0, None, None, None, priority=1)
    accepted, _ = core.preprocess_add_request(request)
    budget_clock.pass_(budget.LINGER)
    assert core.scheduler.max_num_scheduled_tokens == 170
    accepted.num_computed_tokens = 2
    budget_clock.pass_(budget.LINGER)
    assert core.scheduler.max_num_scheduled_tokens == 8192


@pytest.mark.parametrize(
    ("vocabulary", "device", "tokens"),
    [(131_072, "cpu", 170), (151_936, "cuda", 588), (288, "cpu", 77_672), (10**9, "cpu", 18)],
)
def test_a_step_with_logprobs_of_prompts_fits_into_their_memory(vocabulary: int, device: str, tokens: int) -> None:
    """But it has at least one token for each request."""
    model = SimpleNamespace(get_vocab_size=lambda: vocabulary)
    config = SimpleNamespace(model_config=model, scheduler_config=SimpleNamespace(max_num_seqs=18))
    assert launch._logprobs_tokens(config, device) == tokens
