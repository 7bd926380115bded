"""Anthropic's Messages by its own client on the starter model."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.system.serving import Server
from tests.system.tools import HELLO, LIGHT, MODEL

pytestmark = pytest.mark.real


@pytest.fixture(scope="session")
def claude(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", timeout=600, max_retries=0) as client:
        yield client


def test_messages_and_their_events(claude: Anthropic) -> None:
    words = [{"role": "user", "content": "hello world"}]
    requested: Any = {"model": "uppercase", "max_tokens": 40, "messages": words, "extra_body": {"temperature": 0}}
    plain = claude.messages.create(**requested)
    assert (plain.content[0].type, plain.stop_reason, plain.model) == ("text", "end_turn", "uppercase")
    assert plain.usage.output_tokens == len("HELLO WORLD") + 1
    assert (plain._request_id or "").startswith("req-")
    kinds: list[str] = []
    for event in claude.messages.create(**requested, stream=True):
        if not kinds or kinds[-1] != event.type:
            kinds.append(event.type)
    assert kinds == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    with claude.messages.stream(**requested) as stream:
        assert "".join(stream.text_stream) == "HELLO WORLD"
        assert stream.get_final_message().usage.output_tokens == plain.usage.output_tokens
    stopped = claude.messages.create(**requested, stop_sequences=["O W"], system="be brief")
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "O W")


def test_messages_with_tools(claude: Anthropic) -> None:
    tool: Any = {"name": "set_light", "input_schema": LIGHT}
    question: Any = [{"role": "user", "content": "light"}]
    answer = claude.messages.create(
        model=MODEL, max_tokens=60, messages=question, tools=[tool], tool_choice={"type": "tool", "name": "set_light"}
    )
    [use] = [block for block in answer.content if block.type == "tool_use"]
    assert (answer.stop_reason, use.name) == ("tool_use", "set_light")
    assert use.input in ({"state": "on"}, {"state": "off"})
    turns: Any = [
        *question,
        {"role": "assistant", "content": [use.to_dict()]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "done"}]},
    ]
    assert claude.messages.create(model=MODEL, max_tokens=60, messages=turns, tools=[tool]).content


@pytest.mark.parametrize(("tokens", "whole"), [(230, 4), (30, 0)])
def test_calls_that_are_cut_come_as_far_as_they_are_whole(claude: Anthropic, tokens: int, whole: int) -> None:
    requested: Any = {
        "model": MODEL, "max_tokens": tokens, "messages": HELLO, "tool_choice": {"type": "any"},
        "tools": [{"name": "set_light", "input_schema": LIGHT}], "extra_body": {"temperature": 0},
    }  # fmt: skip
    answer = claude.messages.create(**requested)
    assert answer.stop_reason == "max_tokens"
    assert [block.input for block in answer.content if block.type == "tool_use"] == [{"state": "on"}] * whole
    assert "set_light" in "".join(block.text for block in answer.content if block.type == "text")
    with claude.messages.stream(**requested) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "max_tokens"
    assert [block.type for block in final.content].count("tool_use") == whole
    assert "set_light" in "".join(block.text for block in final.content if block.type == "text")


def test_tokens_of_a_message_are_counted(claude: Anthropic) -> None:
    requested: Any = {"model": MODEL, "messages": HELLO}
    counted = claude.messages.count_tokens(**requested).input_tokens
    assert counted == claude.messages.create(**requested, max_tokens=1).usage.input_tokens
    assert claude.messages.count_tokens(**requested, system="be brief").input_tokens == counted + len("be brief") + 2
    requested["messages"] = [*HELLO, {"role": "assistant", "content": "Hello!"}]
    counted = claude.messages.count_tokens(**requested).input_tokens
    assert counted == claude.messages.create(**requested, max_tokens=1).usage.input_tokens


def test_a_reference_to_a_tool_is_a_text_where_the_chat_template_reads_none(claude: Anthropic) -> None:
    """Claude Code's tool search returns such references. vLLM would make a second result of them."""

    def counted(content: Any) -> int:
        use = {"type": "tool_use", "id": "1", "name": "ToolSearch", "input": {"query": "light"}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": content}
        turns: Any = [*HELLO, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return claude.messages.count_tokens(model=MODEL, messages=turns).input_tokens

    named = counted("The tool set_light is available now.")
    assert counted([{"type": "tool_reference", "tool_name": "set_light"}]) == named


def test_errors_have_anthropics_classes(claude: Anthropic) -> None:
    requested: Any = {"model": MODEL, "max_tokens": 4, "messages": HELLO}
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(**{**requested, "model": "claude-99"})
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    for more in (
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x" * 5000}]},
        {"max_tokens": -1},
        {"extra_body": {"n": 2}},
        {"max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1023}},
        {"max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1024}, "stream": True},
    ):
        with pytest.raises(anthropic.BadRequestError) as refused:
            claude.messages.create(**{**requested, **more})
        body: Any = refused.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error"), more
        assert body["error"]["message"]


def test_hints_of_a_coding_agent_are_left_out_with_a_warning(claude: Anthropic) -> None:
    """Claude Code sends these in each of its requests, with tools that Anthropic's servers would run."""
    raw = claude.messages.with_raw_response.create(
        model=MODEL, max_tokens=4, messages=HELLO,
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
        extra_body={
            "context_management": {"edits": []}, "output_config": {"effort": "high"}, "nonsense": 1,
            "mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}],
        },
    )  # fmt: skip
    warning = raw.headers["x-roundhouse-warning"]
    for name in ("context_management", "output_config.effort", "mcp_servers", "nonsense", "web_search_20250305"):
        assert name in warning
    assert raw.parse().content


def test_tools_that_the_client_runs_itself(claude: Anthropic) -> None:
    tool: Any = {"type": "bash_20250124", "name": "bash"}
    answer = claude.messages.create(
        model=MODEL, max_tokens=60, messages=HELLO, tools=[tool], extra_body={"temperature": 0},
        tool_choice={"type": "tool", "name": "bash"},
    )  # fmt: skip
    calls = [block.name for block in answer.content if block.type == "tool_use"]
    assert calls in (["bash"], []), "the model may be cut before its call ends"


def test_a_prompt_that_is_too_long_is_named_so_that_agents_compact(claude: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as refused:
        claude.messages.create(model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "x" * 5000}])
    assert "parameter=" not in str(refused.value)
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 513 tokens > 512 maximum"):
        claude.messages.create(model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "x" * 700}])
