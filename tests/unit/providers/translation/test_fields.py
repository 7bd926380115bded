"""Every field of the official SDKs is translated, left out or refused as the tables say, never lost silently."""

import copy
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import typing_extensions
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from registry.errors import BadRequest, TooLarge
from routing.providers.translation import (
    from_chat,
    from_messages,
    from_responses,
)
from routing.providers.translation import from_chat as chat_fields
from routing.providers.translation import from_messages as message_fields
from routing.providers.translation import from_responses as response_fields
from routing.providers.translation.reading import Fields
from tests.unit.providers.translation import samples


@dataclass(frozen=True)
class Dialect:
    root: Any
    """The SDK's type of a request."""
    types: Mapping[str, str]
    """The table's row of each nested type of the SDK, by module and name."""
    opaque: frozenset[str]
    """Types that are passed on unchanged."""
    fields: Mapping[str, Fields]
    refused: Mapping[str, str]
    sample: dict[str, Any]
    places: Mapping[str, samples.Path]
    translated: Callable[[dict[str, Any]], Any]

    def outcome(self, body: dict[str, Any]) -> Any:
        """Return the translation, or the refused field."""
        try:
            return self.translated(body)
        except BadRequest as error:
            return f"refused {error.param}"


def chat(body: dict[str, Any]) -> Any:
    found, answers = from_chat.translated(body, max_output=64)
    return found, len(answers.end())  # which has usage if it was requested


CHAT = Dialect(
    root=CompletionCreateParamsStreaming,
    types={
        "completion_create_params.CompletionCreateParamsStreaming": "request",
        "chat_completion_developer_message_param.ChatCompletionDeveloperMessageParam": "messages[] (system, developer)",
        "chat_completion_system_message_param.ChatCompletionSystemMessageParam": "messages[] (system, developer)",
        "chat_completion_user_message_param.ChatCompletionUserMessageParam": "messages[] (user)",
        "chat_completion_assistant_message_param.ChatCompletionAssistantMessageParam": "messages[] (assistant)",
        "chat_completion_tool_message_param.ChatCompletionToolMessageParam": "messages[] (tool)",
        "chat_completion_content_part_text_param.ChatCompletionContentPartTextParam": "content[] (text)",
        "chat_completion_content_part_refusal_param.ChatCompletionContentPartRefusalParam": "content[] (refusal)",
        "chat_completion_content_part_image_param.ChatCompletionContentPartImageParam": "content[] (image_url)",
        "chat_completion_content_part_image_param.ImageURL": "content[].image_url",
        "chat_completion_content_part_param.File": "content[] (file)",
        "chat_completion_content_part_param.FileFile": "content[].file",
        "chat_completion_message_function_tool_call_param.ChatCompletionMessageFunctionToolCallParam": (
            "tool_calls[] (function)"
        ),
        "chat_completion_message_function_tool_call_param.Function": "tool_calls[].function",
        "chat_completion_function_tool_param.ChatCompletionFunctionToolParam": "tools[] (function)",
        "function_definition.FunctionDefinition": "tools[].function",
        "chat_completion_named_tool_choice_param.ChatCompletionNamedToolChoiceParam": "tool_choice (function)",
        "chat_completion_named_tool_choice_param.Function": "tool_choice.function",
        "response_format_json_schema.ResponseFormatJSONSchema": "response_format (json_schema)",
        "response_format_json_schema.JSONSchema": "response_format.json_schema",
        "chat_completion_stream_options_param.ChatCompletionStreamOptionsParam": "stream_options",
    },
    opaque=frozenset({"response_format_text.ResponseFormatText"}),
    fields=chat_fields.FIELDS,
    refused=chat_fields.REFUSED,
    sample=samples.CHAT,
    places=samples.CHAT_PLACES,
    translated=chat,
)
MESSAGES = Dialect(
    root=MessageCreateParamsStreaming,
    types={
        "message_create_params.MessageCreateParamsStreaming": "request",
        "user_message_param.UserMessageParam": "messages[] (user)",
        "assistant_message_param.AssistantMessageParam": "messages[] (assistant)",
        "system_message_param.SystemMessageParam": "messages[] (system)",
        "text_block_param.TextBlockParam": "content[] (text)",
        "image_block_param.ImageBlockParam": "content[] (image)",
        "document_block_param.DocumentBlockParam": "content[] (document)",
        "base64_image_source_param.Base64ImageSourceParam": "source (base64)",
        "base64_pdf_source_param.Base64PDFSourceParam": "source (base64)",
        "url_image_source_param.URLImageSourceParam": "source (url)",
        "tool_use_block_param.ToolUseBlockParam": "content[] (tool_use)",
        "tool_result_block_param.ToolResultBlockParam": "content[] (tool_result)",
        "thinking_block_param.ThinkingBlockParam": "content[] (thinking)",
        "redacted_thinking_block_param.RedactedThinkingBlockParam": "content[] (redacted_thinking)",
        "tool_param.ToolParam": "tools[] (custom)",
        "tool_choice_auto_param.ToolChoiceAutoParam": "tool_choice",
        "tool_choice_any_param.ToolChoiceAnyParam": "tool_choice",
        "tool_choice_tool_param.ToolChoiceToolParam": "tool_choice",
        "tool_choice_none_param.ToolChoiceNoneParam": "tool_choice",
        "metadata_param.MetadataParam": "metadata",
        "output_config_param.OutputConfigParam": "output_config",
        "json_output_format_param.JSONOutputFormatParam": "output_config.format (json_schema)",
    },
    opaque=frozenset({"tool_param.InputSchemaTyped"}),
    fields=message_fields.FIELDS,
    refused=message_fields.REFUSED,
    sample=samples.MESSAGES,
    places=samples.MESSAGES_PLACES,
    translated=lambda body: from_messages.translated(body)[0],
)
RESPONSES = Dialect(
    root=ResponseCreateParamsStreaming,
    types={
        "response_create_params.ResponseCreateParamsStreaming": "request",
        "easy_input_message_param.EasyInputMessageParam": "input[] (message)",
        "response_input_param.Message": "input[] (message)",
        "response_output_message_param.ResponseOutputMessageParam": "input[] (message)",
        "response_input_text_param.ResponseInputTextParam": "content[] (input_text)",
        "response_input_text_content_param.ResponseInputTextContentParam": "content[] (input_text)",
        "response_output_text_param.ResponseOutputTextParam": "content[] (output_text)",
        "response_output_refusal_param.ResponseOutputRefusalParam": "content[] (refusal)",
        "response_input_image_param.ResponseInputImageParam": "content[] (input_image)",
        "response_input_image_content_param.ResponseInputImageContentParam": "content[] (input_image)",
        "response_input_file_param.ResponseInputFileParam": "content[] (input_file)",
        "response_input_file_content_param.ResponseInputFileContentParam": "content[] (input_file)",
        "response_function_tool_call_param.ResponseFunctionToolCallParam": "input[] (function_call)",
        "response_input_param.FunctionCallOutput": "input[] (function_call_output)",
        "response_reasoning_item_param.ResponseReasoningItemParam": "input[] (reasoning)",
        "function_tool_param.FunctionToolParam": "tools[] (function)",
        "tool_choice_function_param.ToolChoiceFunctionParam": "tool_choice (function)",
        "response_text_config_param.ResponseTextConfigParam": "text",
        "response_format_text_json_schema_config_param.ResponseFormatTextJSONSchemaConfigParam": (
            "text.format (json_schema)"
        ),
        "reasoning.Reasoning": "reasoning",
    },
    opaque=frozenset(
        {"response_format_text.ResponseFormatText", "response_format_json_object.ResponseFormatJSONObject"}
    ),
    fields=response_fields.FIELDS,
    refused=response_fields.REFUSED,
    sample=samples.RESPONSES,
    places=samples.RESPONSES_PLACES,
    translated=lambda body: from_responses.translated(body).body,
)
DIALECTS = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}
INSTEAD = {"max_tokens": "max_completion_tokens"}
"""Fields that count only if another one is missing."""


# --- the tables and the SDKs -----------------------------------------------------------------------------------------
def _stripped(hint: Any) -> Any:
    while typing.get_origin(hint) in (typing.Annotated, typing_extensions.Required, typing_extensions.NotRequired):
        hint = typing.get_args(hint)[0]
    return hint


def _objects(hint: Any) -> Iterator[Any]:
    """Yield the types of objects that a field may have."""
    hint = _stripped(hint)
    if typing_extensions.is_typeddict(hint):
        yield hint
    for inner in typing.get_args(hint):
        yield from _objects(inner)


def _kinds(kind: Any) -> set[str]:
    hints = typing.get_type_hints(kind)
    hint = hints.get("role") if "type" not in hints else hints["type"]
    return set(_words(hint))


def _words(hint: Any) -> Iterator[str]:
    """Yield the words of a literal at any depth."""
    for inner in typing.get_args(_stripped(hint)):
        yield from [inner] if isinstance(inner, str) else _words(inner)


def _unknown(dialect: Dialect, kind: Any, seen: set[str]) -> Iterator[str]:
    """Yield the fields and kinds of the SDK that are in no table."""
    name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
    if name in seen or name in dialect.opaque:
        return
    seen.add(name)
    row = dialect.fields[dialect.types[name]]
    refused_kinds = {word for words in dialect.refused.values() for word in words.split()}
    for field, hint in typing_extensions.get_type_hints(kind, include_extras=True).items():
        if field not in row.carried | row.left_out | set(row.only) | row.refused:
            yield f"{name}.{field}"
        if field not in row.carried:
            continue
        for inner in _objects(hint):
            inner_name = f"{inner.__module__.rpartition('.')[2]}.{inner.__name__}"
            if inner_name in dialect.types or inner_name in dialect.opaque:
                yield from _unknown(dialect, inner, seen)
            elif not (dialect.refused.get(f"{field}[]") == "" or (_kinds(inner) and _kinds(inner) <= refused_kinds)):
                yield f"{name}.{field}: {inner_name}"


@pytest.mark.parametrize("name", DIALECTS)
def test_the_tables_have_every_field_of_the_sdk(name: str) -> None:
    dialect, seen = DIALECTS[name], set[str]()
    assert list(_unknown(dialect, dialect.root, seen)) == []
    assert set(dialect.types) <= seen  # each row was reached
    assert set(dialect.types.values()) == set(dialect.fields)


# --- the tables and the translation ----------------------------------------------------------------------------------
def _at(body: Any, path: samples.Path) -> Any:
    for step in path:
        body = body[step]
    return body


def _param(path: samples.Path, name: str) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*path, name))
    return steps.removeprefix(".")


ROWS = [(name, row) for name, dialect in DIALECTS.items() for row in dialect.fields]


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_each_field_is_treated_as_its_row_says(name: str, row: str) -> None:
    dialect, path = DIALECTS[name], DIALECTS[name].places[row]
    fields, whole = dialect.fields[row], dialect.outcome(dialect.sample)
    assert not isinstance(whole, str), whole
    for field in fields.carried - {"model"}:
        without = copy.deepcopy(dialect.sample)
        without.pop(INSTEAD.get(field, ""), None)
        expected = dialect.outcome(without)
        del _at(without, path)[field]
        assert dialect.outcome(without) != expected, f"{field} is not carried"
    for field in fields.left_out:
        assert _with(dialect, path, field, "x") == whole, f"{field} is not left out"
    for field, values in fields.only.items():
        assert [_with(dialect, path, field, value) for value in values] == [whole] * len(values)
    for field in (*fields.only, *fields.refused, "unheard_of"):
        assert _with(dialect, path, field, "another") == f"refused {_param(path, field)}"


def _with(dialect: Dialect, path: samples.Path, field: str, value: Any) -> Any:
    body = copy.deepcopy(dialect.sample)
    _at(body, path)[field] = value
    return dialect.outcome(body)


KINDS = [
    (name, place, kind)
    for name, dialect in DIALECTS.items()
    for place, kinds in dialect.refused.items()
    for kind in kinds.split() or ["bash_20250124"]
]


@pytest.mark.parametrize(("name", "place", "kind"), KINDS)
def test_a_kind_without_a_counterpart_is_refused(name: str, place: str, kind: str) -> None:
    dialect, path = DIALECTS[name], DIALECTS[name].places[place]
    word = "role" if place == "messages[]" else "type"
    param = place if place == "response_format" else _param(path, word)
    assert _with(dialect, path, word, kind) == f"refused {param}"


def test_arguments_with_too_many_values_are_refused_before_they_are_parsed() -> None:
    """Arguments are JSON in a string, a single value of the body. 4 MB of 1e308 delayed every stream by 12 s."""

    def requested(calls: int, numbers: int) -> dict[str, Any]:
        arguments = f'{{"a": [{"1e308," * numbers}1]}}'
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        stated = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call] * calls}]
        return {"messages": stated}

    chat(requested(3, 1000))
    for calls, numbers in ((1, 5000), (5, 1000)):
        with pytest.raises(TooLarge):
            chat(requested(calls, numbers))


@pytest.mark.parametrize("tools", [False, 0, "", {}], ids=repr)
def test_tools_of_responses_are_a_list_even_if_empty(tools: object) -> None:
    """The answer repeats them, which is too late to refuse anything."""
    with pytest.raises(BadRequest, match="'tools' must be a list"):
        from_responses.translated({"input": "hello", "tools": tools})
    assert "tools" not in from_responses.translated({"input": "hello", "tools": []}).body
