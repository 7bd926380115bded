"""Requests of the class batch share the steps of vLLM's own scheduler with requests of higher classes."""

from itertools import count
from typing import Any

import pytest

from models.chat.vllm.steps import batch_share
from tenants.caller import ServiceClass
from tests.contract.vllm.stock import stock
from tests.system.serving import ROOT

pytestmark = pytest.mark.real
STEP, SHARE = 2048, 2048 // batch_share.PART
BATCH, PEOPLE = ServiceClass.BATCH, ServiceClass.INTERACTIVE


class _Engine:
    """vLLM's scheduler without a model: each request whose prompt is read gets one token in each step."""

    def __init__(self, kind: Any, config: Any) -> None:
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
        cache = KVCacheConfig(num_blocks=1000, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a"], spec)])
        self.scheduler = kind(config, cache, StructuredOutputManager(config), block_size=16)
        self._numbers = count()

    def add(self, service_class: ServiceClass, tokens: int) -> str:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        number = next(self._numbers)
        params = SamplingParams(max_tokens=8)
        prompt = [number + 3] * tokens
        request = Request(f"{service_class.label}-{number}", prompt, params, None, priority=int(service_class))
        self.scheduler.add_request(request)
        return str(request.request_id)

    def step(self) -> dict[str, int]:
        """Run a step; return the number of tokens of each request in it."""
        from vllm.v1.outputs import ModelRunnerOutput

        plan = self.scheduler.schedule()
        names = list(plan.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        sampled = [[7] if one.num_computed_tokens >= one.num_prompt_tokens else [] for one in requests]
        done = ModelRunnerOutput(names, {name: place for place, name in enumerate(names)}, sampled)
        self.scheduler.update_from_output(plan, done)
        return dict(plan.num_scheduled_tokens)

    def end(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)


@pytest.fixture(scope="module")
def config() -> Any:
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(
        model=str(ROOT / "models" / "starter" / "pack" / "starter-chat"), max_num_batched_tokens=STEP, max_num_seqs=32,
        scheduling_policy="priority", enforce_eager=True, async_scheduling=False, enable_prefix_caching=False,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = 1000
    return config


@pytest.fixture
def engine(config: Any) -> _Engine:
    kind = stock("vllm.v1.core.sched.scheduler").Scheduler
    batch_share.patch(kind)
    return _Engine(kind, config)


def test_batch_prompts_are_read_whole_while_they_are_alone(engine: _Engine) -> None:
    lines = [engine.add(BATCH, 400) for _ in range(6)]
    assert engine.step() == dict(zip(lines, [400] * 5 + [48], strict=True))


def test_batch_prompts_leave_most_of_a_step_to_interactive_requests(engine: _Engine) -> None:
    """vLLM itself continues prompts that it has begun, for which an interactive prompt would have to wait."""
    lines = [engine.add(BATCH, 400) for _ in range(6)]
    engine.step()
    lines += [engine.add(BATCH, 400) for _ in range(5)]
    people = [engine.add(PEOPLE, 400) for _ in range(4)]
    assert engine.step() == dict.fromkeys(people, 400), "a whole prompt each"
    step = engine.step()
    assert {name: step[name] for name in lines[:5]} == dict.fromkeys(lines[:5], 1), "prompts that are read continue"
    assert sum(step.get(name, 0) for name in lines[5:]) == SHARE, "all together"
    assert step[lines[5]] == SHARE, "all for the prompt that was begun"


def test_batch_prompts_make_progress_beside_interactive_requests(engine: _Engine) -> None:
    lines = [engine.add(BATCH, 300) for _ in range(3)]
    person = engine.add(PEOPLE, 20)
    read = dict.fromkeys(lines, 0)
    for _ in range(2 * 300 // SHARE):
        step = engine.step()
        assert sum(tokens for name, tokens in step.items() if name != person) <= SHARE + len(lines)
        for name in lines:
            read[name] += step.get(name, 0)
    assert 300 <= read[lines[0]] < 300 + 8, "one after the other"
    assert 0 < read[lines[1]] < 300
    engine.end(person)
    step = engine.step()
    assert read[lines[1]] + step[lines[1]] == 300, "the rest at once after the interactive request"


def _let_lines_run(engine: _Engine) -> None:
    """Let the class batch take part in the next step, as after many steps without it."""
    engine.scheduler.roundhouse_batch_pause = None, False, 0


@pytest.mark.parametrize("most", [512, 100])
def test_a_shorter_step_has_room_for_interactive_requests_too(engine: _Engine, most: int) -> None:
    """As while critical requests arrive (`budget`)."""
    engine.scheduler.max_num_scheduled_tokens = most
    lines = [engine.add(BATCH, 400) for _ in range(2)]
    assert sum(engine.step().values()) == most, "some of the prompts are not yet read"
    person = engine.add(PEOPLE, 400)
    _let_lines_run(engine)
    step = engine.step()
    assert step[person] >= most // 2 - len(lines)
    assert 0 < step.get(lines[0], 0) + step.get(lines[1], 0) <= most // 2 + len(lines)


@pytest.mark.parametrize("what", ["Mamba", "whole prompts"])
def test_prompts_that_vllm_cannot_cut_anywhere_are_read_whole(engine: _Engine, what: str) -> None:
    engine.add(PEOPLE, 20)
    engine.step()
    line = engine.add(BATCH, 400)
    scheduler = engine.scheduler
    scheduler.need_mamba_block_aligned_split = False
    if what == "Mamba":
        scheduler.need_mamba_block_aligned_split = True
        scheduler._mamba_block_aligned_split = lambda request, tokens, *_: tokens
        assert engine.step()[line] == 400
    else:
        scheduler.scheduler_config.enable_chunked_prefill = False
        try:
            assert engine.step()[line] == 400
        finally:
            scheduler.scheduler_config.enable_chunked_prefill = True


def test_batch_answers_wait_while_an_interactive_prompt_is_read(engine: _Engine) -> None:
    lines = [engine.add(BATCH, 20) for _ in range(31)]
    engine.step()
    engine.scheduler.max_num_scheduled_tokens = 300
    person = engine.add(PEOPLE, 400)
    assert [engine.step(), engine.step()] == [{person: 300}, {person: 100}]
    assert engine.step() == dict.fromkeys([*lines, person], 1)


def test_batch_answers_get_half_of_the_steps_beside_endless_interactive_prompts(engine: _Engine) -> None:
    line = engine.add(BATCH, 20)
    engine.step()
    engine.scheduler.max_num_scheduled_tokens = 2
    engine.add(PEOPLE, 400)
    turns = [line in engine.step() for _ in range(batch_share.MOST_PAUSES + 6)]
    assert turns == [False] * batch_share.MOST_PAUSES + [True, False] * 3
