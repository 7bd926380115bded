"""Fields of other servers and clients are moved to where vLLM reads them, and nothing else changes."""

import json
from typing import Any

import pytest

from models.chat.requests import documents, moves
from models.chat.requests.request import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES, ChatRequest
from registry.errors import BadRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON = {"type": "json_schema", "schema": SCHEMA}
USAGE = {"include_usage": True}
ANSWER = {"role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
REFUSAL = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
QUESTION = {"role": "user", "content": [{"type": "input_text", "text": 'a "output_text"'}]}


def moved(path: str, body: dict[str, Any]) -> Any:
    request = ChatRequest(path, json.dumps(body).encode())
    moves.move(request)
    return json.loads(request.body)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"guided_json": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
        ({"guided_json": json.dumps(SCHEMA)}, {"structured_outputs": {"json": json.dumps(SCHEMA)}}),
        ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}),
        ({"guided_regex": "a+", "guided_json": None}, {"structured_outputs": {"regex": "a+"}, "guided_json": None}),
        ({"guided_grammar": "root ::= x"}, {"structured_outputs": {"grammar": "root ::= x"}}),
        ({"grammar": "root ::= x"}, {"structured_outputs": {"grammar": "root ::= x"}}),
        ({"guided_json_object": True}, {"structured_outputs": {"json_object": True}}),
        ({"guided_json_object": False, "guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
        ({"json_schema": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
        ({"regex": "a+", "ebnf": None}, {"structured_outputs": {"regex": "a+"}, "ebnf": None}),
        ({"ebnf": "root ::= x"}, {"structured_outputs": {"grammar": "root ::= x"}}),
        (
            {"guided_grammar": "root ::= x", "structured_outputs": {"grammar": "root ::= x"}},
            {"structured_outputs": {"grammar": "root ::= x"}},
        ),
        (
            {"response_format": {"type": "json", "value": SCHEMA}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        ({"response_format": {"type": "json"}}, {"response_format": {"type": "json_object"}}),
        (
            {"response_format": {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        ),
        ({"response_format": {"type": "regex", "value": "a+"}}, {"structured_outputs": {"regex": "a+"}}),
        ({"repeat_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"n_predict": 3}, {"max_tokens": 3}),
        ({"max_new_tokens": 3, "max_tokens": 3}, {"max_tokens": 3}),
        ({"tools": [], "tool_choice": "auto"}, {}),
        ({"tool_choice": "auto"}, {}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"stream_options": USAGE}, {}),
        ({"stream": False, "stream_options": USAGE}, {"stream": False}),
        ({"stop": ""}, {}),
        ({"stop": ["", "\n", ""]}, {"stop": ["\n"]}),
        ({"suffix": ""}, {}),
        ({"grammar": "", "guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
    ],
)
def test_fields_of_other_servers_are_moved(path: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    assert moved(path, {"model": "m", **before}) == {"model": "m", **after}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("unnamed", [{}, {"name": None}])
def test_a_schema_without_a_name_gets_one(path: str, unnamed: dict[str, Any]) -> None:
    before = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, **unnamed}}}
    after = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "name": "answer"}}}
    assert moved(path, before) == after
    named = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "name": "mine"}}}
    assert moved(path, named) == named


def test_minus_one_is_no_limit_of_a_chats_tokens() -> None:
    assert moved(CHAT, {"max_tokens": -1, "max_completion_tokens": -1}) == {}
    assert moved(CHAT, {"max_tokens": -2}) == {"max_tokens": -2}
    assert moved(COMPLETIONS, {"max_tokens": -1}) == {"max_tokens": -1}, "without it, its default of 16 would apply"


def test_mistrals_word_for_a_required_call_is_understood() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert moved(CHAT, {"tools": tools, "tool_choice": "any"}) == {"tools": tools, "tool_choice": "required"}


def test_a_functions_name_alone_chooses_it_as_at_text_generation_inference() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    chosen = {"type": "function", "function": {"name": "f"}}
    assert moved(CHAT, {"tools": tools, "tool_choice": "f"}) == {"tools": tools, "tool_choice": chosen}
    for choice in ("auto", "none", "required", "another"):
        assert moved(CHAT, {"tools": tools, "tool_choice": choice})["tool_choice"] == choice


@pytest.mark.parametrize("others", [{}, {"mood": "calm"}])
def test_qwens_switch_for_thinking_is_moved_to_the_templates_variables(others: dict[str, Any]) -> None:
    before = {"enable_thinking": False} | ({"chat_template_kwargs": others} if others else {})
    after = {"chat_template_kwargs": {**others, "enable_thinking": False, "thinking": False}}
    assert moved(CHAT, before) == after


def calling(arguments: Any, kind: Any = {"type": "function"}) -> dict[str, Any]:  # noqa: B006
    call = {"id": "1", **kind, "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"role": "user", "name": None, "content": "hi"}, {"role": "user", "content": "hi"}),
        (calling({"state": "on"}), calling('{"state":"on"}')),
        (calling(None), calling("{}")),
        (calling({}), calling("{}")),
        (calling("{}", kind={}), calling("{}")),
        (calling("{}", kind={"type": ""}), calling("{}")),
        (calling("{}", kind={"type": "custom"}), calling("{}", kind={"type": "custom"})),
        (calling('{"name": null, "arguments": {}}'), calling('{"name": null, "arguments": {}}')),
        ({"role": "user", "name": None, "tool_calls": ["odd", {}]}, {"role": "user", "tool_calls": ["odd", {}]}),
    ],
)
def test_messages_are_completed(before: Any, after: Any) -> None:
    others = [{"role": "user", "name": "bob", "content": '"name": null'}, 5]
    assert moved(CHAT, {"model": "m", "messages": [before, *others]})["messages"] == [after, *others]


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize("config", [{}, {"output_config": {"effort": "low"}}, {"output_config": None}])
def test_the_beta_name_of_an_output_format_is_accepted(path: str, config: dict[str, Any]) -> None:
    body = moved(path, {"model": "m", "output_format": JSON, **config})
    assert body == {"model": "m", "output_config": {**(config.get("output_config") or {}), "format": JSON}}


PLAIN = {"type": "text", "media_type": "text/plain", "data": "All slots are full."}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
TEXT = {"type": "text", "text": "a document"}


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize(
    ("block", "written"),
    [
        ({"type": "document", "source": PLAIN}, {"type": "text", "text": "All slots are full."}),
        (
            {"type": "document", "source": PLAIN, "title": "News", "context": "", "citations": {"enabled": False}},
            {"type": "text", "text": "News\n\nAll slots are full."},
        ),
        (
            {"type": "document", "source": {"type": "content", "content": "Two slots."}},
            {"type": "text", "text": "Two slots."},
        ),
        (
            {"type": "document", "source": {"type": "content", "content": [TEXT, TEXT]}},
            {"type": "text", "text": "a document\n\na document"},
        ),
        (
            {"type": "search_result", "source": "http://a", "title": "News", "content": [TEXT], "citations": None},
            {"type": "text", "text": "News\n\nhttp://a\n\na document"},
        ),
        (TEXT, TEXT),
        ({"type": "tool_result", "content": "a document"}, {"type": "tool_result", "content": "a document"}),
    ],
)
def test_documents_and_search_results_become_text(path: str, block: Any, written: Any) -> None:
    def turns(*blocks: Any) -> list[Any]:
        result = {"type": "tool_result", "tool_use_id": "1", "content": list(blocks)}
        return [{"role": "user", "content": "hi"}, {"role": "user", "content": [result, *blocks]}, 5]

    request = ChatRequest(path, json.dumps({"model": "m", "messages": turns(block, TEXT)}).encode())
    assert len(request.turns("messages")) == 3
    moves.move(request)
    assert json.loads(request.body)["messages"] == turns(written, TEXT)
    turn = request.turns("messages")[1]
    assert turn is not None
    assert json.loads(bytes(turn.content))[1] == written


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "document", "source": PDF}, "source"),
        ({"type": "document", "source": {"type": "file", "file_id": "f"}}, "source"),
        ({"type": "document"}, "source"),
        (
            {"type": "document", "source": {"type": "content", "content": [TEXT, {"type": "image"}]}},
            "source.content[1]",
        ),
        ({"type": "document", "source": PLAIN, "citations": {"enabled": True}}, "citations"),
        ({"type": "search_result", "content": [TEXT], "citations": {"enabled": True}}, "citations"),
        ({"type": "search_result", "content": "a"}, "content"),
        ({"type": "image"}, "source"),
        ({"type": "image", "source": {}}, "source"),
        ({"type": "image", "image_url": {"url": "data:image/png;base64,AAAA"}}, "source"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_other_documents_are_refused_also_in_the_result_of_a_tool(block: Any, field: str, inside: bool) -> None:
    held = {"type": "tool_result", "tool_use_id": "1", "content": [block]} if inside else block
    call = {"type": "tool_use", "id": "2", "name": "copy", "input": {"source": {"path": "a"}}}
    turns = [{"role": "user", "content": [TEXT, held]}, {"role": "assistant", "content": [call]}]
    with pytest.raises(BadRequest) as refused:
        moved(MESSAGES, {"model": "m", "messages": turns})
    assert refused.value.param == f"messages[0].content[1]{'.content[0]' if inside else ''}.{field}"


def test_results_of_tools_within_each_other_are_refused() -> None:
    """Hundreds of them, which the JSON may hold, would be too deep to be written out."""
    block = '{"type": "document"}'
    for _ in range(400):
        block = f'{{"type": "tool_result", "content": [{block}]}}'
    body = f'{{"messages": [{{"role": "user", "content": [{block}]}}]}}'.encode()
    with pytest.raises(BadRequest) as refused:
        moves.move(ChatRequest(MESSAGES, body))
    assert refused.value.param == "messages[0].content[0].content[0].type"


@pytest.mark.parametrize("field", ["content", "output"])
@pytest.mark.parametrize("missing", [{}, {"detail": None}])
def test_images_in_the_input_of_a_response_get_the_default_detail(field: str, missing: dict[str, Any]) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    items = [{"call_id": "1", field: [image | missing, image | {"detail": "low"}, TEXT]}, {field: "input_image"}, 5]
    body = moved(RESPONSES, {"model": "m", "input": items})
    whole = [image | {"detail": "auto"}, image | {"detail": "low"}, TEXT]
    assert body["input"] == [{"call_id": "1", field: whole}, *items[1:]]


@pytest.mark.parametrize("field", ["content", "output"])
def test_an_image_of_a_response_that_is_a_file_is_refused_by_name(field: str) -> None:
    image = {"type": "input_image", "file_id": "file-1", "detail": "auto"}
    with pytest.raises(BadRequest, match="Send 'image_url'") as refused:
        moved(RESPONSES, {"model": "m", "input": [{"call_id": "1", field: [TEXT, image]}]})
    assert refused.value.param == f"input[0].{field}[1].file_id"


@pytest.mark.parametrize("field", ["content", "output"])
def test_a_file_in_the_input_of_a_response_is_refused_by_its_place(field: str) -> None:
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    with pytest.raises(BadRequest, match="files are not read here") as refused:
        moved(RESPONSES, {"model": "m", "input": [{"call_id": "1", field: [TEXT, file]}]})
    assert refused.value.param == f"input[0].{field}[1]"


@pytest.mark.parametrize("block", [{"type": "resource", "text": "a"}, {"text": "a"}])
def test_blocks_that_vllm_would_leave_out_of_a_tools_result_are_refused(block: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": [TEXT, block]}
    with pytest.raises(BadRequest, match="send one of text, image, tool_reference") as refused:
        moved(MESSAGES, {"model": "m", "messages": [{"role": "user", "content": [result, {"type": "odd"}]}]})
    assert refused.value.param == "messages[0].content[0].content[1].type"


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
def test_references_to_tools_in_results_become_texts(path: str) -> None:
    reference = {"type": "tool_reference", "tool_name": "WebFetch"}
    added = {"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "a"}}]}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [TEXT, reference]}
    body = {"model": "m", "messages": [{"role": "user", "content": [result, TEXT]}, added, 5]}
    request = ChatRequest(path, json.dumps(body).encode())
    documents.write_out_references(request)
    named = {"type": "text", "text": "The tool WebFetch is available now."}
    named_result = {**result, "content": [TEXT, named]}
    assert json.loads(request.body)["messages"] == [{"role": "user", "content": [named_result, TEXT]}, added, 5]


def test_references_in_other_requests_stay() -> None:
    for path, content in ((CHAT, [{"type": "tool_reference", "name": "a"}]), (MESSAGES, "a")):
        body = {"model": "m", "messages": [{"role": "tool", "content": content}]}
        request = ChatRequest(path, json.dumps(body).encode())
        documents.write_out_references(request)
        assert json.loads(request.body) == body


def test_answers_in_the_input_of_a_response_get_their_type() -> None:
    items = [QUESTION, ANSWER, {**REFUSAL, "id": None}, {"type": "message", **ANSWER}, QUESTION]
    body = moved(RESPONSES, {"model": "m", "input": items})
    message = {"type": "message"}
    assert body["input"] == [QUESTION, {**message, **ANSWER}, {**message, **REFUSAL}, {**message, **ANSWER}, QUESTION]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"guided_json": SCHEMA, "structured_outputs": {"regex": "a"}}),
        (CHAT, {"guided_json": SCHEMA, "guided_regex": "a"}),
        (CHAT, {"repeat_penalty": 1.1, "repetition_penalty": 1.2}),
        (CHAT, {"n_predict": 3, "max_tokens": 4}),
        (CHAT, {"max_new_tokens": 3, "max_tokens": 4}),
        (CHAT, {"n_predict": 3, "max_completion_tokens": 4}),
        (CHAT, {"enable_thinking": False, "chat_template_kwargs": {"thinking": True}}),
        (CHAT, {"enable_thinking": False, "chat_template_kwargs": "odd"}),
        (CHAT, {"enable_thinking": "yes"}),
        (CHAT, {"stream": True, "stream_options": USAGE, "stop": ["a"]}),
        (CHAT, {"tool_choice": "required"}),
        (CHAT, {"tools": [{}], "suffix": "x", "guided_json": "", "grammar": None}),
        (MESSAGES, {"output_format": JSON, "output_config": {"format": JSON}}),
        (MESSAGES, {"output_format": JSON, "output_config": "odd"}),
        (MESSAGES, {"guided_json": SCHEMA}),
        (RESPONSES, {"input": "hello", "guided_json": SCHEMA}),
        (RESPONSES, {"input": [QUESTION, {"role": "assistant", "content": "yes"}, 5, {"type": "reasoning"}]}),
        ("/tokenize", {"guided_json": SCHEMA}),
    ],
)
def test_fields_are_not_moved_over_others(path: str, body: dict[str, Any]) -> None:
    assert moved(path, body) == body
