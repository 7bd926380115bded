"""Fields of a chat request that are left out or refused, because the engine would drop them."""

import ast
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, Field

from docs.tables import hints
from models.chat.requests import fields as chat_fields
from models.chat.requests import template
from models.chat.requests.request import NOT_STORED, ChatRequest
from registry.errors import BadRequest

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


class ChatBody(BaseModel):
    model: str
    reasoning_effort: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class Responding(ChatBody):
    tools: list[Any] = []
    tool_choice: str = "auto"


class Counted(BaseModel):
    model: str


@pytest.fixture
def fields() -> chat_fields.Fields:
    app = FastAPI()

    @app.post(CHAT)
    @app.post(MESSAGES)
    @app.post("/tokenize")
    async def ask(request: ChatBody) -> None: ...

    @app.post(RESPONSES)
    async def respond(request: Responding) -> None: ...

    @app.post(COUNT)
    async def count(request: Counted) -> None: ...

    app_fields = chat_fields.known(app)
    assert chat_fields.known(app, calls=False) == {**app_fields, RESPONSES: app_fields[RESPONSES] - {"tools"}}
    assert chat_fields.known(app, budget=False) == app_fields
    assert chat_fields.known(app, effort=False) == {**app_fields, CHAT: app_fields[CHAT] - {"reasoning_effort"}}
    return app_fields


def test_tools_without_a_parser_of_calls_are_refused_for_responses(fields: chat_fields.Fields) -> None:
    """vLLM refuses them in Chat Completions and Messages, but silently ignores them here."""
    deaf = {**fields, RESPONSES: fields[RESPONSES] - {"tools"}}
    body: dict[str, Any] = {"model": "m", "tools": [{"type": "function", "name": "f"}]}
    with pytest.raises(BadRequest, match="needs a parser of this model's calls") as refused:
        chat_fields.check(deaf, ChatRequest(RESPONSES, json.dumps(body).encode()))
    assert refused.value.param == "tools"
    for more in ({"tool_choice": "none"}, {"tools": []}):
        chat_fields.check(deaf, ChatRequest(RESPONSES, json.dumps(body | more).encode()))
    chat_fields.check(fields, ChatRequest(RESPONSES, json.dumps(body).encode()))


def test_fields_come_from_the_applications_own_classes(fields: chat_fields.Fields) -> None:
    assert fields[CHAT] == {"model", "reasoning_effort", "schema_", "schema"}
    assert fields[COUNT] == fields[MESSAGES]  # fields of a message are accepted when it is counted
    assert "/tokenize" not in fields


@pytest.mark.parametrize(
    "more",
    [
        {"schema": {"a": 1}},
        {"metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k"},
        {"store": False, "modalities": ["text"], "best_of": 1, "function_call": "none", "verbosity": "medium"},
        {"audio": None, "functions": [], "extra_body": {}},
        {"response_format": {"type": "json_object", "value": None}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}},
        {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
        {"response_format": {"type": ["odd"]}},
        {"response_format": "odd", "stream_options": 4},
        {"stream_options": {"include_usage": True, "include_obfuscation": False}},
    ],
)
def test_fields_that_the_engine_reads_are_accepted(fields: chat_fields.Fields, more: dict[str, Any]) -> None:
    known = {**fields, CHAT: fields[CHAT] | {"response_format", "stream_options"}}
    chat_fields.check(known, ChatRequest(CHAT, json.dumps({"model": "m", **more}).encode()))


def test_a_budget_of_reasoning_needs_a_parser_of_it(fields: chat_fields.Fields) -> None:
    """The engine would refuse it in the middle of a stream, and in Messages without its reason."""
    thinking = {"model": "m", "thinking": {"type": "enabled", "budget_tokens": 1024}}
    parsed = {**fields, CHAT: fields[CHAT] | {"thinking_token_budget"}}
    for path, body, name in (
        (CHAT, {"model": "m", "thinking_token_budget": 9}, "thinking_token_budget"),
        (MESSAGES, thinking, "thinking.budget_tokens"),
    ):
        chat_fields.check({**parsed, MESSAGES: fields[MESSAGES] | {"thinking"}}, request_of(path, body))
        with pytest.raises(BadRequest, match=r"needs a parser of this model's reasoning") as refused:
            chat_fields.check({**fields, MESSAGES: fields[MESSAGES] | {"thinking"}}, request_of(path, body))
        assert refused.value.param == name
    for unbounded in ({"type": "adaptive"}, {"type": "disabled"}):
        chat_fields.check(fields, request_of(MESSAGES, {"model": "m", "thinking": unbounded}))
    chat_fields.check(fields, request_of(COUNT, thinking))


UNIQUE = {
    "type": "object",
    "properties": {"uniqueItems": {"type": "array", "uniqueItems": True}, "b": {"enum": [{"uniqueItems": True}]}},
}
RELAXED = {**UNIQUE, "properties": {**UNIQUE["properties"], "uniqueItems": {"type": "array"}}}


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        (CHAT, "required"),
        (CHAT, {"type": "function", "function": {"name": "f"}}),
        (RESPONSES, "required"),
        (MESSAGES, {"type": "any"}),
        (MESSAGES, {"type": "tool", "name": "f"}),
    ],
)
def test_unique_items_are_left_out_of_tools_that_are_not_strict(
    fields: chat_fields.Fields, path: str, choice: Any
) -> None:
    """No grammar enforces them, and clients write them for lists of choices, as Home Assistant."""
    known = {**fields, path: fields[path] | {"tools", "tool_choice"}}

    def checked(strict: bool, choice: Any, *, is_strict: bool = False) -> tuple[Any, str]:
        inner = {"name": "f", "strict": strict, "parameters": UNIQUE}
        tools = [{"type": "function", "function": inner}] if path == CHAT else [{"type": "function", **inner}]
        request = request_of(path, {"model": "m", "tools": tools, "tool_choice": choice})
        warning = chat_fields.check(known, request, strict=is_strict)
        tool = request.value("tools")[0]
        return tool.get("function", tool)["parameters"], warning

    assert checked(False, choice) == (RELAXED, "left out, as this engine does not know them: uniqueItems of tools")
    for unchanged in (checked(True, choice), checked(False, "auto"), checked(False, choice, is_strict=True)):
        assert unchanged == (UNIQUE, "")


def request_of(path: str, body: dict[str, Any]) -> ChatRequest:
    return ChatRequest(path, json.dumps(body).encode())


def test_reasoning_is_never_missing_from_a_completion(fields: chat_fields.Fields) -> None:
    """SillyTavern asks for it in each of its requests."""
    known = {**fields, CHAT: fields[CHAT] | {"include_reasoning"}, COMPLETIONS: frozenset({"model", "prompt"})}
    for include, is_refused in ((True, False), (False, True)):
        body = json.dumps({"model": "m", "prompt": "a", "include_reasoning": include}).encode()
        with pytest.raises(BadRequest) if is_refused else nullcontext():
            assert chat_fields.check(known, ChatRequest(COMPLETIONS, body)) == ""


def without_nulls(path: str, body: bytes) -> bytes:
    request = ChatRequest(path, body)
    request.drop_nulls()
    return request.body


def test_nulls_are_left_out(fields: chat_fields.Fields) -> None:
    body = b'{"model": "m", "n" : null , "background":null,"stop":["null"],"x":{"y":null}}'
    assert json.loads(without_nulls(RESPONSES, body)) == {"model": "m", "stop": ["null"], "x": {"y": None}}
    for kept in (b'{"x":"null", "y": [null]}', b"null", b"[null]", b'{"x": null', b"{}"):
        assert without_nulls(RESPONSES, kept) == kept
    assert without_nulls("/tokenize", body) == body


@pytest.mark.parametrize("options", [{}, {"include_obfuscation": False}])
def test_turning_obfuscation_off_is_accepted(fields: chat_fields.Fields, options: Any) -> None:
    chat_fields.check(fields, ChatRequest(RESPONSES, json.dumps({"model": "m", "stream_options": options}).encode()))


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
def test_store_is_removed_with_a_warning(path: str) -> None:
    body = b'{"model":"m", "store" : true, "x":"\\"store\\""}'
    request = ChatRequest(path, body)
    assert request.drop_store() == NOT_STORED
    assert json.loads(request.body) == {**json.loads(body), "store": False}
    for other in (b'{"store":false}', b'{"store":null}', b'{"x":"\\"store\\": true"}', b'{"store":1}'):
        request = ChatRequest(path, other)
        assert (request.drop_store(), request.body) == ("", other)
    request = ChatRequest("/v1/messages", body)
    assert (request.drop_store(), request.body) == ("", body)


@pytest.mark.parametrize(
    ("path", "more", "param", "words"),
    [
        (CHAT, {"nonsense": 1}, "nonsense", "Unrecognized request argument supplied: nonsense"),
        (CHAT, {"web_search_options": {}}, "web_search_options", "leave it out"),
        (CHAT, {"modalities": ["audio"]}, "modalities", "leave it out"),
        (CHAT, {"store": True}, "store", "leave it out"),
        (CHAT, {"guided_json": {}, "guided_regex": "a"}, "guided_json", "send 'structured_outputs': {\"json\": ...}"),
        (CHAT, {"extra_body": {"top_k": 1}}, "extra_body", "into the body itself"),
        (RESPONSES, {"conversation": "conv_1"}, "conversation", "send the conversation as 'input'"),
        (RESPONSES, {"max_tokens": 3}, "max_tokens", "send 'max_output_tokens'"),
        (CHAT, {"best_of": 2}, "best_of", "with 'n'"),
        (CHAT, {"lora": [{"id": 0, "scale": 1}]}, "lora", "its name as 'model'"),
        (CHAT, {"adapters": "./legal"}, "adapters", "its name as 'model'"),
        (MESSAGES, {"top": 1}, "top", "top: Extra inputs are not permitted"),
        (CHAT, {"response_format": {"type": "json_object", "value": {}}}, "response_format.value", "leave it out"),
        (CHAT, {"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "leave it out"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"schem": {}}}},
            "response_format.json_schema.schem",
            "leave it out",
        ),
        (
            CHAT,
            {"stream": True, "stream_options": {"include_usge": True}},
            "stream_options.include_usge",
            "leave it out",
        ),
        ("/v1/responses", {"text": {"formt": {}}}, "text.formt", "leave it out"),
        ("/v1/responses", {"text": {"verbosity": "low"}}, "text.verbosity", "leave 'text.verbosity' out"),
        ("/v1/responses", {"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema", "ignore"),
        ("/v1/responses", {"store": True}, "store", "not stored"),
        ("/v1/responses", {"truncation": "auto"}, "truncation", "not cut"),
        ("/v1/responses", {"stream_options": {"include_obfuscation": True}}, "stream_options", "leave it out"),
        ("/v1/responses", {"stream_options": {"include_usage": True}}, "stream_options", "leave it out"),
        ("/v1/responses", {"tools": [{"type": "function"}, {"type": "mcp"}]}, "tools[1].type", "'mcp'"),
        ("/v1/responses", {"tools": [{"type": "nonsense"}]}, "tools[0].type", "send a function"),
    ],
)
def test_fields_that_matter_are_refused(
    fields: chat_fields.Fields, path: str, more: dict[str, Any], param: str, words: str
) -> None:
    known = {**fields, "/v1/responses": fields["/v1/responses"] | {"store", "tools", "text", "truncation"}}
    known[CHAT] |= {"response_format", "stream", "stream_options"}
    with pytest.raises(BadRequest, match=words.replace("[", r"\[")) as refused:
        chat_fields.check(known, ChatRequest(path, json.dumps({"model": "m", **more}).encode()), strict=True)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("more", "code"),
    [({"previous_response_id": "resp_1"}, "previous_response_not_found"), ({"background": True}, "unsupported_value")],
)
def test_clients_know_an_earlier_response_that_is_not_stored_by_its_code(
    fields: chat_fields.Fields, more: dict[str, Any], code: str
) -> None:
    """GitHub Copilot and others then send the whole conversation by themselves."""
    known = {**fields, RESPONSES: fields[RESPONSES] | more.keys()}
    with pytest.raises(BadRequest, match="not stored") as refused:
        chat_fields.check(known, ChatRequest(RESPONSES, json.dumps({"model": "m", **more}).encode()))
    assert (refused.value.param, refused.value.code) == (next(iter(more)), code)


@pytest.mark.parametrize(
    ("path", "more", "left", "name"),
    [
        (CHAT, {"nonsense": 1, "web_search_options": {}}, {}, "nonsense, web_search_options"),
        (RESPONSES, {"client_metadata": {"a": "b"}}, {}, "client_metadata"),
        (RESPONSES, {"truncation": "auto"}, {}, "truncation"),
        (RESPONSES, {"text": {"verbosity": "low"}}, {"text": {}}, "text.verbosity"),
        (RESPONSES, {"text": {"format": {"type": "text", "x": 1}}}, {"text": {"format": {"type": "text"}}},
         "text.format.x"),
        (RESPONSES, {"stream_options": {"include_usage": True}}, {}, "stream_options"),
        (RESPONSES, {"tools": [{"type": "function"}, {"type": "web_search"}]}, {"tools": [{"type": "function"}]},
         "tools of type web_search"),
        (RESPONSES, {"tools": [{"type": "mcp"}], "tool_choice": "auto"}, {}, "tools of type mcp"),
        (RESPONSES, {"include": ["web_search_call.action.sources", "message.output_text.logprobs"]},
         {"include": ["message.output_text.logprobs"]}, "include"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, {},
         "tools of type web_search_20250305"),
        (MESSAGES, {"context_management": {"edits": []}}, {}, "context_management"),
        (MESSAGES, {"output_config": {"effort": "high"}}, {"output_config": {}}, "output_config.effort"),
        (CHAT, {"response_format": {"type": "text", "schema": {}}}, {"response_format": {"type": "text"}},
         "response_format.schema"),
        (CHAT, {"\r\nx: y": 1}, {}, "a field of no plain name"),
    ],
)  # fmt: skip
def test_hints_are_left_out_with_a_warning(
    fields: chat_fields.Fields, path: str, more: dict[str, Any], left: dict[str, Any], name: str
) -> None:
    known = {
        RESPONSES: fields[RESPONSES] | {"include", "tools", "tool_choice", "text", "truncation"},
        CHAT: (fields[CHAT] | {"response_format", "stream_options"}) - {"reasoning_effort"},
        MESSAGES: fields[MESSAGES] | {"output_config", "tools"},
    }
    request = ChatRequest(path, json.dumps({"model": "m", **more}).encode())
    assert chat_fields.check(known, request) == f"left out, as this engine does not know them: {name}"
    assert json.loads(request.body) == {"model": "m", **left}


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"best_of": 2}, "best_of"),
        (CHAT, {"modalities": ["audio"]}, "modalities"),
        (CHAT, {"guided_json": {}, "structured_outputs": {"regex": "a"}}, "guided_json"),
        (CHAT, {"repeat_penalty": 1.1, "repetition_penalty": 1.1}, "repeat_penalty"),
        (CHAT, {"n_predict": 3, "max_completion_tokens": 4}, "n_predict"),
        (CHAT, {"format": {"type": "object"}}, "format"),
        (CHAT, {"instructions": "be brief"}, "instructions"),
        (RESPONSES, {"conversation": "conv_1"}, "conversation"),
        (RESPONSES, {"input": ["item_reference", {"type": "item_reference", "id": "msg_1"}]}, "input[1]"),
        (MESSAGES, {"output_format": {}, "output_config": {"format": {}}}, "output_format"),
        (MESSAGES, {"n": 2}, "n"),
        (RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tools[0].type"),
        (RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tools[0].type"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "s"}], "tool_choice": {"type": "any"}},
         "tools[0].type"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "s"}],
                    "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, "tools[0].type"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "s"}],
                    "tool_choice": {"type": "tool", "name": "s"}}, "tools[0].type"),
    ],
)  # fmt: skip
def test_fields_that_would_change_the_answer_are_refused(
    fields: chat_fields.Fields, path: str, more: dict[str, Any], param: str
) -> None:
    known = {
        RESPONSES: fields[RESPONSES] | {"tools", "input"},
        CHAT: fields[CHAT] | {"n"},
        MESSAGES: fields[MESSAGES] | {"tools", "tool_choice"},
    }  # fmt: skip
    with pytest.raises(BadRequest) as refused:
        chat_fields.check(known, ChatRequest(path, json.dumps({"model": "m", **more}).encode()))
    assert refused.value.param == param


@pytest.mark.parametrize("name", ["value", "schema"])
def test_a_schema_with_json_object_is_moved_to_its_field(fields: chat_fields.Fields, name: str) -> None:
    known = {**fields, CHAT: fields[CHAT] | {"response_format"}}
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    body = json.dumps({"model": "m", "response_format": {"type": "json_object", name: schema}}).encode()
    request = ChatRequest(CHAT, body)
    assert chat_fields.check(known, request, strict=True) == ""
    moved = json.loads(request.body)["response_format"]
    assert moved == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("tools", ["word", [1], {"a": 1}, None, [{"type": 4}], []])
def test_tools_that_are_no_list_are_left_to_the_engine(fields: chat_fields.Fields, tools: Any) -> None:
    known = {**fields, "/v1/responses": fields["/v1/responses"] | {"tools"}}
    chat_fields.check(known, ChatRequest("/v1/responses", json.dumps({"model": "m", "tools": tools}).encode()))


def test_other_paths_ignore_unknown_fields(fields: chat_fields.Fields) -> None:
    chat_fields.check(fields, ChatRequest("/tokenize", b'{"model": "m", "nonsense": 1}'))


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
        (RESPONSES, {"reasoning": {"effort": "low"}}, "reasoning.effort"),
        (MESSAGES, {"output_config": {"effort": "low"}}, "output_config.effort"),
    ],
)
def test_an_effort_that_the_template_does_not_know_is_ignored_with_a_warning(
    fields: chat_fields.Fields, path: str, more: dict[str, Any], param: str
) -> None:
    body = json.dumps({"model": "m", **more}).encode()
    knowing = {**fields, RESPONSES: frozenset({"model", "reasoning"}), MESSAGES: frozenset({"model", "output_config"})}
    chat_fields.check(knowing, ChatRequest(path, body))
    deaf = {**knowing, CHAT: knowing[CHAT] - {"reasoning_effort"}}
    with pytest.raises(BadRequest) as refused:
        chat_fields.check(deaf, ChatRequest(path, body), strict=True)
    assert refused.value.param == param
    assert chat_fields.check(deaf, ChatRequest(path, body)).endswith(f": {param}")


@pytest.mark.parametrize("reasoning", [{"summary": "auto"}, {"effort": "none"}, {}, None, "odd"])
def test_reasoning_without_an_effort_is_accepted(fields: chat_fields.Fields, reasoning: Any) -> None:
    knowing = {CHAT: frozenset({"model"}), RESPONSES: frozenset({"model", "reasoning"})}
    chat_fields.check(knowing, ChatRequest(RESPONSES, json.dumps({"model": "m", "reasoning": reasoning}).encode()))


def test_summaries_of_reasoning_are_refused() -> None:
    knowing = {CHAT: frozenset({"model", "reasoning_effort"}), RESPONSES: frozenset({"model", "reasoning"})}
    with pytest.raises(BadRequest, match="not as a summary"):
        chat_fields.check(
            knowing, ChatRequest(RESPONSES, b'{"model": "m", "reasoning": {"summary": "detailed"}}'), strict=True
        )


@pytest.mark.parametrize(
    ("file", "text", "flags", "knows"),
    [
        ("tokenizer_config.json", '{"chat_template": "{{ messages }}"}', {}, False),
        ("tokenizer_config.json", '{"chat_template": "{% if enable_thinking %}"}', {}, True),
        ("chat_template.jinja", "{{ reasoning_effort }}", {}, True),
        ("chat_template.jinja", "{{ reasoning_effort }}", {"chat_template": "{{ messages }}"}, False),
        ("other.txt", "", {}, True),
    ],
)
def test_whether_a_template_knows_an_effort(
    tmp_path: Path, file: str, text: str, flags: dict[str, str], knows: bool
) -> None:
    (tmp_path / file).write_text(text)
    assert chat_fields.knows_effort(tmp_path, flags) is knows


def test_a_template_in_a_separate_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ enable_thinking }}")
    assert chat_fields.knows_effort(tmp_path, {"chat_template": str(tmp_path / "mine.jinja")})


def test_a_template_that_is_longer_than_a_file_name_is_no_path(tmp_path: Path) -> None:
    """Looking for a file of that name would raise an error."""
    text = "{{ reasoning_effort }}" + "x" * 300
    assert template.texts(tmp_path, {"chat_template": text}) == [text]


# --- names in `chat_template_kwargs` that a model's chat template does not read ---------------------------------------
JINJA, CONFIG = "chat_template.jinja", "tokenizer_config.json"


def unread(folder: Path, flags: dict[str, Any], *names: str) -> list[str]:
    body = json.dumps({"model": "m", "chat_template_kwargs": dict.fromkeys(names, True)}).encode()
    return template.Variables(folder, flags).unread(ChatRequest(CHAT, body))


@pytest.mark.parametrize(
    ("file", "text", "flags", "unread_names"),
    [
        (JINJA, "{% if enable_thinking %}{{ mood }}{% endif %}", {}, ["slip"]),
        (JINJA, "{{ mood }}", {}, ["enable_thinking", "slip", "thinking"]),
        (JINJA, "{{ mood }}", {"reasoning-parser": "qwen3"}, ["slip"]),
        (JINJA, "{{ slip }}", {"chat_template": "{{ thinking }}"}, ["mood", "slip"]),
        (CONFIG, '{"chat_template": "{{ mood }}"}', {"chat-template": "{{ thinking }}"}, ["mood", "slip"]),
        (CONFIG, '{"chat_template": "{{ mood }}"}', {}, ["enable_thinking", "slip", "thinking"]),
        (CONFIG, '{"eos_token": "."}', {}, []),
        (JINJA, "{{ mood }}", {"tokenizer_mode": "mistral"}, []),
        ("other.txt", "", {}, []),
    ],
)
def test_variables_that_a_template_does_not_read(
    tmp_path: Path, file: str, text: str, flags: dict[str, Any], unread_names: list[str]
) -> None:
    (tmp_path / file).write_text(text)
    requested = ("mood", "slip", "enable_thinking", "thinking", "documents", "add_generation_prompt")
    assert unread(tmp_path, flags, *requested) == unread_names


def test_a_template_is_not_scanned_beside_mistrals_own_tokenizer(tmp_path: Path) -> None:
    (tmp_path / JINJA).write_text("{{ mood }}")
    (tmp_path / "tekken.json").write_text("{}")
    assert unread(tmp_path, {}, "slip") == []


def test_a_word_is_read_by_the_base_or_by_the_adapters_own_template(tmp_path: Path) -> None:
    assert not template.Variables(tmp_path, {}).reads("tool_reference")
    (tmp_path / JINJA).write_text("{% if part.type == 'tool_reference' %}{{ part.name }}{% endif %}")
    variables = template.Variables(tmp_path, {})
    assert variables.reads("tool_reference")
    assert not variables.reads("tool_reference", "{{ mood }}")


def test_the_warning_of_unread_variables(tmp_path: Path) -> None:
    (tmp_path / JINJA).write_text("{{ mood }}")
    variables = template.Variables(tmp_path, {})
    body = json.dumps({"chat_template_kwargs": {"slip": 1, "\r\nx: y": 2}}).encode()
    describe_unread = "chat_template_kwargs: this model's chat template does not read a name of no variable, slip"
    assert template.describe_unread(variables, ChatRequest(CHAT, body), strict=False) == describe_unread
    with pytest.raises(BadRequest) as error:
        template.describe_unread(variables, ChatRequest(CHAT, b'{"chat_template_kwargs": {"slip": 1}}'), strict=True)
    assert (error.value.param, error.value.code) == ("chat_template_kwargs.slip", "unknown_parameter")
    for other in (b"{}", b'{"chat_template_kwargs": null}', b'{"chat_template_kwargs": 7}', b'"chat_template_kwargs"'):
        assert template.describe_unread(variables, ChatRequest(CHAT, other), strict=True) == ""


# --- typical decoding ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "body",
    [
        b'{"vllm_xargs": {"typical_p": 1.0, "other": 3}}', b'{"vllm_xargs": {"typical_p": null}}',
        b'{"prompt": "typical_p of this text"}', b'{"temperature": 0.0, "vllm_xargs": {"typical_p": 0.95}}',
        b'{"vllm_xargs": 5}', b'{"typical_p": 1}', b'{"typical_p": null}', b'{"typical_p": 0.5, "temperature": 0}',
    ],
)  # fmt: skip
def test_typical_decoding_of_1_is_left_out(body: bytes) -> None:
    request = ChatRequest(CHAT, body)
    chat_fields.check({}, request)
    assert "typical_p" not in request.fields, "without a warning"


@pytest.mark.parametrize("body", [b'{"typical_p": %s}', b'{"vllm_xargs": {"typical_p": %s}}'])
@pytest.mark.parametrize("share", ["0.5", "0", '"0.5"'])
def test_typical_decoding_is_refused(body: bytes, share: str) -> None:
    with pytest.raises(BadRequest, match="set it to null") as refused:
        chat_fields.check({}, ChatRequest(CHAT, body % share.encode()))
    assert (refused.value.param, refused.value.code) == ("typical_p", "unsupported_value")


# --- the documentation's table -------------------------------------------------------------------------------------
SAMPLES: dict[str, Any] = {
    "reasoning_effort": "high", "truncation": "auto", "reasoning.effort": "high", "reasoning.summary": "detailed",
    "reasoning.generate_summary": "detailed", "text.verbosity": "low", "output_config.effort": "low",
    "stream_options": {"include_usage": True}, "thinking": {"type": "enabled"}, "reasoning": {"effort": "low"},
    "include": ["web_search_call.action.sources"],
}  # fmt: skip
"""A value that is left out, by field. The default is 'x'."""


def known_by_vllm() -> chat_fields.Fields:
    """Return the fields as for a model without efforts."""
    found = {path: hints.known(path) for path in hints.CLASSES}
    return {**found, CHAT: found[CHAT] - {"reasoning_effort"}}


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in hints.CLASSES for name in hints.left_out(path)])
def test_fields_in_the_table_are_left_out(path: str, name: str) -> None:
    outer, _, inner = name.partition(".")
    value = SAMPLES.get(name, "x")
    body = {"model": "m", outer: {inner: value} if inner else value}
    request = ChatRequest(path, json.dumps(body).encode())
    assert chat_fields.check(known_by_vllm(), request).endswith(f": {name}")
    assert json.loads(request.body).get(outer) in (None, {})
    with pytest.raises(BadRequest):
        chat_fields.check(known_by_vllm(), ChatRequest(path, json.dumps(body).encode()), strict=True)


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, names in chat_fields.INNER.items() for name in names]
)
def test_unknown_fields_of_objects_are_left_out(path: str, name: str) -> None:
    kind = "json_schema" if name.endswith("json_schema") else "text"
    body: dict[str, Any] = {"odd": 1, "schema": {}} if name == "response_format.json_schema" else {"odd": 1}
    for outer in reversed(name.split(".")):
        body = {outer: {"type": kind, **body} if outer in ("response_format", "format") else body}
    request = ChatRequest(path, json.dumps({"model": "m", "stream": True, **body}).encode())
    assert f"{name}.odd" in chat_fields.check(known_by_vllm(), request)


def test_only_fields_in_the_table_are_left_out() -> None:
    names = {name for path in hints.CLASSES for name in hints.left_out(path)}
    calls = [
        node
        for node in ast.walk(ast.parse(Path(chat_fields.__file__).read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "leave_out"
    ]
    literal = [[part.value for part in call.args[1:] if isinstance(part, ast.Constant)] for call in calls]
    written = {".".join(map(str, parts)) for parts in literal if parts}
    assert len(written) >= 4
    assert {name for name in written if name != "reasoning"} <= names, "except for `reasoning.` and the word of a loop"


def test_hosted_tools_match_the_table() -> None:
    for word in hints.hosted().replace("`", "").replace("…", "").split(", "):
        body = json.dumps({"model": "m", "tools": [{"type": f"{word}_2030"}]}).encode()
        assert chat_fields.check(known_by_vllm(), ChatRequest(RESPONSES, body)).endswith(f"tools of type {word}_2030")
