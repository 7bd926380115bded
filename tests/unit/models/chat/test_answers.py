"""Answers fit the vendors' schemas: no undocumented nulls or missing fields; clients' and models' data is unchanged."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat.answers.completions import NAMES, OWN, PIECES
from models.chat.answers.fitting import fit_answer
from models.chat.answers.messages import USED
from models.chat.answers.responses import ALWAYS, DEFAULTS, echo
from models.chat.requests.errors import explain_failure
from models.chat.requests.request import ChatRequest

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
GONE = (*NAMES, *PIECES, *OWN)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.sampled_from(GONE), inner),
    max_leaves=8,
)


def packed(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def event(value: dict[str, Any]) -> bytes:
    return b"event: " + value["type"].encode() + b"\ndata: " + packed(value) + b"\n\n"


def parse(data: bytes) -> Any:
    return json.loads(data.rpartition(b"data: ")[2])


@pytest.mark.parametrize("path", [CHAT, TEXT])
@given(st.text(), st.dictionaries(st.sampled_from([*GONE, "content", "refusal"]), st.none() | st.integers()))
def test_only_nulls_of_these_names_are_left_out(path: str, content: str, fields: dict[str, int | None]) -> None:
    tricky = content + ',"service_tier":null' + packed({"id": None, "annotations": None}).decode()
    whole = {"first": fields, "content": tricky, **fields, "choices": [{**fields, "text": "{"}, fields]}

    def kept(found: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in found.items() if value is not None or name not in GONE}

    expected = kept({**whole, "first": kept(fields), "choices": [kept({**fields, "text": "{"}), kept(fields)]})
    assert json.loads(fit_answer(path, packed(whole))) == expected


def test_logprobs_have_the_field_of_a_refusal() -> None:
    data = packed({"choices": [{"message": {"content": '"logprobs":{"content":'}, "logprobs": {"content": []}}]})
    found = json.loads(fit_answer(CHAT, data))
    assert found["choices"][0]["logprobs"] == {"content": [], "refusal": None}
    assert found["choices"][0]["message"]["content"] == '"logprobs":{"content":'


@given(st.text(), st.text())
def test_the_recipe_names_the_field_of_reasoning(thought: str, content: str) -> None:
    tricky = content + packed({"reasoning": "x"}).decode()
    arguments = packed({"reasoning": thought}).decode()
    call = {"function": {"name": "f", "arguments": arguments}}
    message = {"content": tricky, "tool_calls": [call], "reasoning": thought}
    rest = {"content": tricky, "tool_calls": [call]}
    stream = b"data: " + packed({"choices": [{"delta": message}]}) + b"\n\ndata: " + packed({"choices": []}) + b"\n\n"
    for field, names in {"reasoning": (), "reasoning_content": (), "both": ("reasoning", "reasoning_content")}.items():
        expected = rest | dict.fromkeys(names or (field,), thought)
        whole = fit_answer(CHAT, packed({"choices": [{"message": message}]}), reasoning_field=field)
        assert json.loads(whole)["choices"][0]["message"] == expected
        pieces = fit_answer(CHAT, stream, reasoning_field=field)
        assert json.loads(pieces.split(b"\n\n")[0].removeprefix(b"data: "))["choices"][0]["delta"] == expected


@given(JSON, st.text())
def test_responses_keep_the_clients_and_the_models_nulls(sent: Any, stated: str) -> None:
    tool = {"type": "function", "name": "x", "parameters": sent, "strict": None, "async": None}
    item = {"type": "message", "phase": None, "content": [{"type": "output_text", "text": stated, "logprobs": None}]}
    shape = {"type": "json_schema", "name": "n", "schema": {"properties": sent}, "description": None, "strict": True}
    whole = {
        "id": "resp_1",
        "instructions": stated,
        "metadata": None,
        "output": [item, {"type": "function_call", "arguments": stated, "namespace": None}],
        "text": {"format": shape, "verbosity": None},
        "tools": [tool],
        "usage": None,
        "top_logprobs": None,
    }
    expected = {
        **dict.fromkeys(ALWAYS),
        **DEFAULTS,
        "id": "resp_1",
        "instructions": stated,
        "output": [
            {"type": "message", "content": [{"type": "output_text", "text": stated}]},
            {"type": "function_call", "arguments": stated},
        ],
        "tools": [{"type": "function", "name": "x", "parameters": sent, "strict": None}],
        "metadata": {"a": "b"},
        "text": {"format": shape, "verbosity": "medium"},
    }
    request = ChatRequest(RESPONSES, packed({"text": {"format": shape}, "metadata": {"a": "b"}, "top_logprobs": None}))
    echoed = echo(request)
    assert json.loads(fit_answer(RESPONSES, packed(whole), echoed=echoed)) == expected
    created = {"type": "response.created", "response": whole, "sequence_number": 0}
    assert parse(fit_answer(RESPONSES, event(created), echoed=echoed))["response"] == expected
    added = {"type": "response.output_item.added", "item": item}
    assert parse(fit_answer(RESPONSES, event(added)))["item"] == expected["output"][0]


def test_the_usage_of_a_response_has_numbers_only() -> None:
    """OpenAI's Agents SDK for JavaScript fails at vLLM's lists."""
    ours = {"cached_tokens": 0, "cache_write_tokens": 0}, {"reasoning_tokens": 1, "tool_output_tokens": 0}
    lists = {f"{kind}_tokens_per_turn": [1] for kind in ("input", "cached", "output", "tool_output")}
    usage = {"input_tokens": 2, "input_tokens_details": ours[0] | lists, "output_tokens_details": ours[1] | lists}
    expected = {"input_tokens": 2, "input_tokens_details": ours[0], "output_tokens_details": ours[1]}
    assert json.loads(fit_answer(RESPONSES, packed({"usage": usage})))["usage"] == expected
    last = {"type": "response.completed", "response": {"status": "completed", "usage": usage}}
    assert parse(fit_answer(RESPONSES, event(last)))["response"]["usage"] == expected


def test_numbers_of_a_client_keep_their_digits() -> None:
    data = b'{"tools":[{"parameters":{"maximum":1e400,"minimum":-123456789012345678901234567890.10}}]}'
    assert data[1:-1] in fit_answer(RESPONSES, data)


@given(JSON)
def test_messages_have_the_fields_that_anthropics_clients_need(sent: Any) -> None:
    block = {"type": "tool_use", "id": "x", "name": "y", "input": {"type": "text", "more": sent}}
    whole = {"id": "msg", "content": [block, {"type": "text", "text": "hi"}], "usage": {"input_tokens": 1}}
    found = json.loads(fit_answer(MESSAGES, packed(whole)))
    assert found["content"] == [block, {"type": "text", "text": "hi"}]
    assert found["usage"] == {"input_tokens": 1, **dict.fromkeys(USED)}
    assert all(found[name] is None for name in ("container", "diagnostics", "stop_details", "stop_sequence"))
    started = {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}, "index": 0}
    assert parse(fit_answer(MESSAGES, event(started)))["content_block"]["signature"] == ""


def test_a_response_repeats_the_request_and_not_vllms_changes() -> None:
    """vLLM puts the schema of a required call into `text`, and adds its own limit."""
    made = {"id": "resp_1", "text": {"format": {"type": "json_schema", "name": "tool_calling_response"}}}
    made |= {"max_output_tokens": 497, "status": "completed", "reasoning": None}
    fields: dict[str, Any] = {
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "reasoning": {"effort": "low"},
        "max_tool_calls": 3,
    }
    requests: list[dict[str, Any]] = [{}, fields, {**fields, "max_output_tokens": 20, "previous_response_id": None}]
    for sent in requests:
        request = ChatRequest(RESPONSES, packed({"model": "m", "input": "a", **sent}))
        found = json.loads(fit_answer(RESPONSES, packed(made), echoed=echo(request)))
        for name in ("prompt_cache_key", "safety_identifier", "max_tool_calls", "max_output_tokens"):
            assert found[name] == sent.get(name), name
        assert found["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
        assert found["reasoning"] == {"effort": sent.get("reasoning", {}).get("effort"), "summary": None}
        assert (found["store"], found["background"], found["metadata"]) == (False, False, {})
        assert found["completed_at"] == pytest.approx(time.time(), abs=60)
    assert echo(ChatRequest(CHAT, b'{"text": {}}')) == {}


@pytest.mark.parametrize(
    ("sent", "reported", "expected"),
    [
        ({}, "none", "auto"),
        ({"tools": [], "tool_choice": None}, "none", "auto"),
        ({"tool_choice": "none"}, "none", "none"),
        ({"tools": [{"type": "function", "name": "f"}]}, "auto", "auto"),
        ({"tools": [{"type": "function", "name": "f"}], "tool_choice": "none"}, "none", "none"),
    ],
)
def test_a_response_without_tools_has_the_choice_that_was_sent(sent: Any, reported: str, expected: str) -> None:
    request = ChatRequest(RESPONSES, packed({"model": "m", "input": "a", **sent}))
    request.drop_nulls()
    made = packed({"id": "resp_1", "tool_choice": reported, "tools": sent.get("tools", [])})
    answer = json.loads(fit_answer(RESPONSES, made, echoed=echo(request)))
    assert answer["tool_choice"] == expected


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_the_last_event_of_a_response_says_whether_it_was_cut(status: str) -> None:
    stated = "event: response.completed\ndata: {}"
    done = event({"type": "response.output_text.done", "text": stated})
    response = {"id": "resp_1", "status": status, "output": [], "instructions": stated}
    fitted = fit_answer(RESPONSES, done + event({"response": response, "type": "response.completed"}))
    first, last, rest = fitted.split(b"\n\n")
    assert (first + b"\n\n", rest) == (done, b"")
    name, _, data = last.partition(b"\ndata: ")
    assert name == f"event: response.{status}".encode()
    found = json.loads(data)
    assert (found["type"], found["response"]["status"]) == (f"response.{status}", status)
    assert found["response"]["instructions"] == stated
    assert (found["response"]["completed_at"] is None) == (status == "incomplete")


def test_pieces_of_text_and_several_events_at_once_stay_whole() -> None:
    delta = event({"type": "response.output_text.delta", "delta": 'x":null', "logprobs": []})
    done = event({"type": "response.output_text.done", "text": "event: \n\ndata: ", "logprobs": None})
    both = fit_answer(RESPONSES, delta + done + delta)
    assert both == delta + done.replace(b',"logprobs":null', b"") + delta
    assert fit_answer(MESSAGES, b"data: [DONE]\n\n") == b"data: [DONE]\n\n"


def test_other_paths_are_unchanged() -> None:
    data = b'{"id":null}'
    assert fit_answer("/tokenize", data) is data


@pytest.mark.parametrize(
    ("code", "word", "kind"),
    [
        (400, "invalid_value", "invalid_request_error"),
        (500, "engine_failed", "server_error"),
        ("invalid_prompt", "invalid_prompt", "BadRequestError"),
    ],
)
def test_an_error_in_a_stream_has_texts_as_its_code_and_type(code: int | str, word: str, kind: str) -> None:
    """In vLLM's format with blanks. A client's text is never taken for one."""
    error = {"message": 'no \n\ndata: {"error"', "type": "BadRequestError", "param": None, "code": code}
    before = b'data: {"choices":[{"delta":{"content":"data: {\\"error\\": {\\"code\\": 400}}"}}]}\n\n'
    stream = before + b"data: " + json.dumps({"error": error}).encode() + b"\n\ndata: [DONE]\n\n"
    kept, event, done, _ = fit_answer("/v1/chat/completions", stream).split(b"\n\n")
    assert kept + b"\n\n" == before
    assert json.loads(event.removeprefix(b"data: ")) == {"error": error | {"code": word, "type": kind}}
    assert done == b"data: [DONE]"


def test_a_stream_that_no_text_could_satisfy_says_so() -> None:
    fault = explain_failure(reached_engine=True, constrained=True)
    broken = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    busy = broken | {"code": 503}
    for path in (CHAT, TEXT):
        stream = [b"data: " + json.dumps({"error": error}).encode() for error in (broken, busy)]
        errors = [json.loads(fit_answer(path, one, fault=lambda: fault)[6:])["error"] for one in stream]
        assert [error["code"] for error in errors] == ["unsatisfiable_constraint", "model_unavailable"]
        assert (errors[0]["type"], errors[0]["message"]) == ("invalid_request_error", fault and fault.message)
    event = b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"it broke"}}\n\n'
    errors = json.loads(fit_answer(MESSAGES, event, fault=lambda: fault, request_id="req_1").partition(b"data: ")[2])
    assert errors == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": fault and fault.message},
        "request_id": "req_1",
    }


def test_an_error_in_a_stream_is_short_and_never_breaks_it() -> None:
    long = json.dumps({"error": {"message": "x" * 9_000, "type": None, "param": None, "code": 400}}).encode()
    assert len(fit_answer("/v1/completions", b"data: " + long + b"\n\n")) < 4_000
    for odd in (b'data: {"error": 5}\n\n', b'data: {"error": {"code": 1}}\n\n', b'data: {"error": "\n\n'):
        assert fit_answer("/v1/completions", odd) == odd


def test_an_error_in_a_stream_of_messages_has_the_vendors_type() -> None:
    event = b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"it broke"}}\n\n'
    expected = {"type": "error", "error": {"type": "api_error", "message": "it broke"}}
    for request_id in ("", "req_1"):
        fitted = fit_answer("/v1/messages", event, request_id=request_id)
        assert fitted.startswith(b"event: error\ndata: ")
        assert fitted.endswith(b"\n\n")
        assert json.loads(fitted.partition(b"data: ")[2]) == expected | {"request_id": request_id or None}


@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": st.just("function"), "name": st.text(), "parameters": JSON, "strict": st.none() | st.booleans()},
            optional={"description": st.none() | st.text(), "output_schema": st.none() | JSON, "other": JSON},
        ),
        max_size=4,
    )
)
def test_tools_are_returned_as_they_were_sent_however_they_are_read(tools: list[dict[str, Any]]) -> None:
    own = ("parameters", "strict")
    expected = [{name: v for name, v in tool.items() if v is not None or name in own} for tool in tools]
    fitted = json.loads(fit_answer(RESPONSES, json.dumps({"tools": tools}).encode()))
    assert fitted["tools"] == expected


@pytest.mark.parametrize("size", [10, 5 << 20])
def test_repeated_tools_are_returned_alike(size: int) -> None:
    """From the cache, or rendered again if they are larger than the cache."""
    tool = {"type": "function", "name": "f", "parameters": {"a": "x" * size}, "strict": None, "defer_loading": None}
    body = json.dumps({"tools": [tool]}).encode()
    first, again = fit_answer(RESPONSES, body), fit_answer(RESPONSES, body)
    assert first == again
    assert "defer_loading" not in json.loads(again)["tools"][0]
