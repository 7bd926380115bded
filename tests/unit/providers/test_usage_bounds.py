"""Usage that a provider reports beyond what a request can have is cut and reported."""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from models.messages import RerankRequest, TranscribeRequest, Usage
from routing.providers.pass_through import merged
from routing.providers.usage_bounds import (
    LONGEST,
    OVERHEAD,
    ROUNDING,
    THOUGHTS,
    UsageBounds,
    of_chat,
    of_ranking,
    of_recording,
)
from tests.fakes import traces
from tests.fakes.provider import Play
from tests.unit.providers.rig import rigged

FALSE = 10**15
REPORTED = {"prompt_tokens": FALSE, "completion_tokens": FALSE, "total_tokens": 2 * FALSE}
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}


@pytest.mark.parametrize("stream", [False, True])
async def test_excessive_usage_is_cut_flagged_and_logged(
    tmp_path: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "roundhouse.providers")
    whole = Play([json.dumps({"model": "big", "choices": [CHOICE], "usage": REPORTED}).encode()])
    chunks: list[Any] = [
        {"model": "big", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]},
        {"model": "big", "choices": [], "usage": REPORTED},
    ]
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    streamed = Play([*events, b"data: [DONE]\n\n"], content_type="text/event-stream")
    async with rigged(tmp_path, lambda seen: streamed if stream else whole) as rig:
        assert (await rig.chat(max_tokens=7, stream=stream)).status_code == 200
        usage = rig.gateway.records.all[-1].usage
        assert OVERHEAD <= usage.prompt_tokens < OVERHEAD + 500
        assert usage.completion_tokens == 7 + THOUGHTS
        assert rig.gateway.records.all[-1].code == "excess_usage", "its row of the ledger is flagged"
        metrics = (await rig.http.get("/metrics")).text
    assert 'roundhouse_provider_attempts_total{name="big",outcome="excess_usage",provider="there"} 1.0' in metrics
    assert "reported more usage than request" in caplog.text


@pytest.mark.parametrize("details", [{"cached_tokens": FALSE}, {"cached_tokens": 900, "cache_write_tokens": 900}])
async def test_a_false_count_of_cached_tokens_never_makes_a_cost_negative(
    tmp_path: Path, details: dict[str, int]
) -> None:
    """Cached tokens cost less, so the cost would be negative if they exceeded the prompt."""
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": details}
    answer = Play([json.dumps({"model": "big", "choices": [CHOICE], "usage": usage}).encode()])
    models = [{"name": "big", "price": {"input": 4, "cached_input": 1, "written_input": 5, "output": 6}}]
    async with rigged(tmp_path, lambda seen: answer, models=models) as rig:
        await rig.chat()
        assert rig.gateway.records.all[-1].cost == 12 * 1 + 5 * 6


def test_the_second_part_of_anthropics_usage_may_omit_the_caches() -> None:
    first = b'{"input_tokens": 8, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 2, "output_tokens": 1}'
    began = merged(Usage(), msgspec.Raw(first))
    for second in (b'{"output_tokens": 5}', b'{"input_tokens": 8, "output_tokens": 5}'):
        found = merged(began, msgspec.Raw(second))
        assert found == Usage(prompt_tokens=100, completion_tokens=5, cached_tokens=90, written_tokens=2)
    renewed = b'{"input_tokens": 3, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 97}'
    assert merged(began, msgspec.Raw(renewed)).prompt_tokens == 100


def test_usage_reported_repeatedly_is_not_added_up() -> None:
    both = b'{"prompt_tokens": 12, "input_tokens": 12, "prompt_tokens_details": {"cached_tokens": 4}}'
    responses = b'{"input_tokens": 12, "input_tokens_details": {"cached_tokens": 4}}'
    for piece in (both, responses):
        once = merged(Usage(), msgspec.Raw(piece))
        assert merged(once, msgspec.Raw(piece)) == once == Usage(prompt_tokens=12, cached_tokens=4)


def test_cached_tokens_of_a_cut_prompt_are_cut() -> None:
    found = UsageBounds(100).cut(Usage(prompt_tokens=1000, cached_tokens=900, written_tokens=50))
    assert (found.prompt_tokens, found.cached_tokens, found.written_tokens) == (100, 100, 0)


async def test_plausible_usage_is_not_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rigged(tmp_path, lambda seen: traces.chat("big")) as rig:
        await rig.chat(max_tokens=9)
        assert rig.gateway.records.all[-1].usage.completion_tokens == 5
        assert rig.gateway.records.all[-1].code is None
        assert 'outcome="ok"' in (await rig.http.get("/metrics")).text
    assert "reported more usage" not in caplog.text


@pytest.mark.parametrize(
    ("body", "context", "completion"),
    [
        ({"max_tokens": 7}, None, 7 + THOUGHTS),
        ({"max_completion_tokens": "7", "n": 3}, 100, 3 * (7 + THOUGHTS)),
        ({"max_output_tokens": 10**30}, 100, LONGEST + THOUGHTS),
        ({}, 5000, 5000),
        ({"n": "no number"}, None, LONGEST),
        ({"prompt": ["a", "b"], "max_tokens": 1}, None, 2 * (1 + THOUGHTS)),
    ],
)
def test_the_bounds_of_an_answer_follow_from_the_request(
    body: dict[str, Any], context: int | None, completion: int
) -> None:
    raw = json.dumps(body).encode()
    assert of_chat(raw, context) == UsageBounds(len(raw) + OVERHEAD, completion)


@pytest.mark.parametrize(
    ("item", "is_all"),
    [
        ({"type": "text", "text": 'see "image_url" and "file"'}, True),
        ({"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}, False),
        ({"type": "input_file", "file_id": "f"}, False),
        ({"type": "web_search_20250305", "name": "web_search"}, False),
    ],
)
def test_content_outside_the_body_lifts_the_bound_of_the_prompt(item: dict[str, Any], is_all: bool) -> None:
    raw = msgspec.json.encode({"messages": [{"role": "user", "content": [item]}]})
    assert of_chat(raw, 10).prompt == (len(raw) + OVERHEAD if is_all else LONGEST)


def test_rankings_and_recordings_have_bounds(tmp_path: Path) -> None:
    ranked = RerankRequest(query="ab", documents=["c"] * 5)
    assert of_ranking(ranked, b"x" * 40) == UsageBounds(40 + 10 + OVERHEAD)
    recording = tmp_path / "a"
    recording.write_bytes(b"0" * 5000)
    bounds = of_recording(TranscribeRequest(path=str(recording), max_seconds=60.0), b"")
    assert bounds.audio_seconds == 10 + ROUNDING
    assert bounds.cut(Usage(audio_seconds=1e9)).audio_seconds == 20.0
