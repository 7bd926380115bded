"""vLLM's metrics of a real engine match the requests, and aborted requests do not stay counted as running."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from models.messages import Chunk
from tests.contract.chat.nasty import TEXT
from tests.contract.chat_engine.bench import Bench

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]


async def vllm_metrics(bench: Bench) -> dict[str, float]:
    """Return the sums of vLLM's own series by name; check that all name the model and none an adapter."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families((await bench.engine.metrics()).decode()):
        for sample in family.samples:
            if not sample.name.startswith("vllm:") or sample.name.endswith("_created"):
                continue
            assert "sha256:" not in str(sample.labels)
            assert sample.labels.get("model_name", "tiny") == "tiny"
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


async def test_tokens_times_and_cache_hits_match_the_requests(bench: Bench) -> None:
    await bench.hold(bench.adapters[0])
    before = await vllm_metrics(bench)
    answers = [await bench.ask(TEXT, {"prompt": "c" * 300, "max_tokens": 5, "ignore_eos": True}) for _ in range(2)]
    answers.append(await bench.ask(TEXT, {"prompt": "d", "max_tokens": 2, "ignore_eos": True}, bench.adapters[0]))
    after = await vllm_metrics(bench)
    grown = {name: after[name] - before[name] for name in after}
    assert grown["vllm:generation_tokens_total"] == sum(a.usage.completion_tokens for a in answers) == 12
    assert grown["vllm:prompt_tokens_total"] == sum(a.usage.prompt_tokens for a in answers)
    assert grown["vllm:prefix_cache_hits_total"] == sum(a.usage.cached_tokens for a in answers) > 0
    assert grown["vllm:prefix_cache_queries_total"] == sum(a.usage.prompt_tokens for a in answers)
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert grown[f"vllm:{name}_count"] == len(answers)
    assert grown["vllm:e2e_request_latency_seconds_sum"] >= grown["vllm:time_to_first_token_seconds_sum"] > 0
    assert grown["vllm:request_success_total"] == len(answers)
    assert "vllm:lora_requests_info" not in after


async def test_running_requests_are_counted_until_an_abort(bench: Bench) -> None:
    answer = bench.begin(TEXT, {"prompt": "x" * 30, "max_tokens": 480, "ignore_eos": True, "stream": True})
    async for event in answer:
        if isinstance(event, Chunk):
            break
    running = await vllm_metrics(bench)
    await answer.aclose()
    ended = await vllm_metrics(bench)
    assert running["vllm:num_requests_running"] == 1
    assert running["vllm:kv_cache_usage_perc"] > 0
    assert ended["vllm:num_requests_running"] == ended["vllm:kv_cache_usage_perc"] == 0
