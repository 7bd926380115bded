"""Move fields of other servers, earlier versions and other clients to where vLLM reads them.

| request                                      | moved                                                          |
|----------------------------------------------|----------------------------------------------------------------|
| `guided_json` and others, of earlier vLLMs   | to `structured_outputs`; removed if it says the same already   |
| `grammar`, `json_schema`, of llama.cpp       | to `structured_outputs`                                        |
| `regex`, `ebnf`, of SGLang                   | to `structured_outputs`                                        |
| `repeat_penalty`, of llama.cpp and LocalAI   | to `repetition_penalty`                                        |
| `n_predict`, of llama.cpp                    | to `max_tokens`                                                |
| `max_new_tokens` equal to `max_tokens`       | removed: SillyTavern sends both                                |
| `enable_thinking`, of Qwen's own API         | to `chat_template_kwargs`                                      |
| `value` or `schema` of a `json_object`       | to `response_format.json_schema`                               |
| TGI's `json`, `regex` and `json_schema`      | with their `value`: the same, or to `structured_outputs`       |
| a `json_schema` without a name               | gets one, as Ollama and llama.cpp need none                    |
| Anthropic's documents and search results     | to text (`models.chat.requests.documents`)                     |
| `output_format`, of Anthropic's beta         | to `output_config.format`                                      |
| an answer in Responses' input without `type` | gets `type`, without which vLLM refuses its `output_text`      |
| an image in Responses without a `detail`     | gets `auto`, the default of OpenAI's API                       |
| an empty `tools`, `suffix` or `grammar`      | removed                                                        |
| `stream_options` without a stream            | removed: a complete answer has its usage anyway                |
| `tool_choice` `any`, of Mistral's API        | becomes `required`                                             |
| a function's name as `tool_choice`, of TGI   | becomes an object with that name                               |
| `tool_choice` `auto` or `none` without tools | removed: it asks for nothing                                   |
| an empty string in `stop`                    | removed: it ends no answer                                     |
| a chat's `max_tokens: -1`                    | removed: no limit, to Ollama, LM Studio and llama.cpp          |
| `name: null` in a message                    | removed                                                        |
| a call's arguments as an object, or null     | written as JSON text                                           |
| a tool's result that is null, or left out    | becomes an empty text                                          |
| an image as a mere URL or base64             | becomes an object with a URL                                   |

A field whose target is already set stays where it is and is refused by name (`models.chat.requests.fields`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from models.chat.requests import documents, turns
from models.chat.requests.request import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES, ChatRequest, begins
from models.chat.requests.template import FIELD
from models.messages import THINK
from registry.errors import BadRequest

GUIDED: Mapping[str, str] = {
    **{f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar", "json_object")},
    "grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}
"""Fields that constrain an answer's form, and their keys in `structured_outputs`."""
_EMPTY = (msgspec.Raw(b"[]"), msgspec.Raw(b'""'))
_CHOICES = ("none", "auto", "required")
_NULL, _BLANK, _UNLIMITED = msgspec.Raw(b"null"), msgspec.Raw(b'""'), msgspec.Raw(b"-1")
_FALSE = msgspec.Raw(b"false")
_ASSISTANT = msgspec.Raw(b'"assistant"')
_ANSWER, _IMAGE, _FILE = (b'"output_text"', b'"refusal"'), b'"input_image"', b'"input_file"'
"""Types of content parts: of an answer, and of a request. Inside a text their quotes would be escaped."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAME = "answer"
"""The name of a schema that has none. It changes no answer."""


def move(request: ChatRequest) -> None:
    """Move such fields of a request; change nothing else."""
    if request.path in (CHAT, COMPLETIONS):
        for name in ("tools", "suffix", "grammar", "stop"):
            if request.fields.get(name) in _EMPTY:
                request.drop(name)
        if request.fields.get("guided_json_object") == _FALSE:
            request.drop("guided_json_object")
        if not request.has("tools") and request.text("tool_choice") in ("auto", "none"):
            request.drop("tool_choice")
        if request.has("stream_options") and not request.is_on("stream"):
            request.drop("stream_options")
        if _BLANK in request.items("stop"):
            request.replace("stop", msgspec.json.encode([one for one in request.items("stop") if one != _BLANK]))
        turns.complete(request)
        _move_guided(request)
        _move_format(request)
        move_schema(request)
        _rename(request, "repeat_penalty", "repetition_penalty")
        if not request.has("max_completion_tokens"):
            _rename(request, "n_predict", "max_tokens")
        if request.has("max_new_tokens") and request.fields["max_new_tokens"] == request.fields.get("max_tokens"):
            request.drop("max_new_tokens")
        if request.path == CHAT:
            for name in ("max_tokens", "max_completion_tokens"):
                if request.fields.get(name) == _UNLIMITED:
                    request.drop(name)
            if request.text("tool_choice") == "any":
                request.replace("tool_choice", b'"required"')
            _name_choice(request)
            _move_thinking(request)
    elif request.path in (MESSAGES, COUNT_TOKENS):
        _move_output_format(request)
        documents.write_out(request)
    elif request.path == RESPONSES:
        _name_messages(request)
        _detail_images(request)


def _rename(request: ChatRequest, name: str, known: str) -> None:
    if request.has(name) and not request.has(known):
        request.replace(known, request.fields[name])
        request.drop(name)


def _name_choice(request: ChatRequest) -> None:
    """Write the name of a function, as Text Generation Inference takes it, as OpenAI's object."""
    name = request.text("tool_choice")
    if name and name not in _CHOICES and any(name == _function(tool) for tool in request.items("tools")):
        request.replace("tool_choice", msgspec.json.encode({"type": "function", "function": {"name": name}}))


def _function(tool: msgspec.Raw) -> Any:
    """Return the name of a tool's function; None if it has none."""
    match msgspec.json.decode(tool):
        case {"function": {"name": name}}:
            return name
    return None


def _move_format(request: ChatRequest) -> None:
    """Write a `response_format` of Text Generation Inference in OpenAI's words, or as a regex."""
    match answer := request.object("response_format"):
        case {"type": "json"}:
            request.replace("response_format", msgspec.json.encode({**answer, "type": "json_object"}))
        case {"type": "json_schema", "value": dict(value)} if "json_schema" not in answer:
            moved = {"type": "json_schema", "json_schema": value}
            request.replace("response_format", msgspec.json.encode(moved))
        case {"type": "regex", "value": str(value)} if not request.has("structured_outputs"):
            request.replace("structured_outputs", msgspec.json.encode({"regex": value}))
            request.drop("response_format")


def move_schema(request: ChatRequest) -> None:
    """Move the schema of a `json_object` to where vLLM reads it, and name one without a name."""
    answer = request.object("response_format")
    if answer.get("type") == "json_schema":
        schema = answer.get("json_schema")
        if isinstance(schema, dict) and schema.get("name") is None:
            named = {**answer, "json_schema": {**schema, "name": _NAME}}
            request.replace("response_format", msgspec.json.encode(named))
        return
    if answer.get("type") != "json_object":
        return
    schema = next((answer[name] for name in ("value", "schema") if isinstance(answer.get(name), dict)), None)
    if schema:
        moved = {"type": "json_schema", "json_schema": {"name": _NAME, "schema": schema}}
        request.replace("response_format", msgspec.json.encode(moved))


def _move_guided(request: ChatRequest) -> None:
    """Move one constraint. Two, or one that differs from `structured_outputs`, stay and are refused.

    Clients that also speak to earlier vLLMs, as guidance does, send the same constraint twice.
    """
    names = [name for name in GUIDED if request.has(name) and request.fields[name] not in _EMPTY]
    if len(names) == 1 and request.value("structured_outputs") == {GUIDED[names[0]]: request.value(names[0])}:
        request.drop(names[0])
    elif len(names) == 1 and not request.has("structured_outputs"):
        request.replace("structured_outputs", msgspec.json.encode({GUIDED[names[0]]: request.fields[names[0]]}))
        request.drop(names[0])


def _move_thinking(request: ChatRequest) -> None:
    enabled, given = request.value("enable_thinking"), request.raw_object(FIELD)
    takes_it = not request.has(FIELD) or (request.is_object(FIELD) and not THINK.keys() & given.keys())
    if isinstance(enabled, bool) and takes_it:
        request.replace(FIELD, msgspec.json.encode(given | dict.fromkeys(THINK, enabled)))
        request.drop("enable_thinking")


def _move_output_format(request: ChatRequest) -> None:
    config = request.raw_object("output_config")
    takes_it = not request.has("output_config") or (request.is_object("output_config") and "format" not in config)
    if request.has("output_format") and takes_it:
        request.replace("output_config", msgspec.json.encode(config | {"format": request.fields["output_format"]}))
        request.drop("output_format")


def _name_messages(request: ChatRequest) -> None:
    if not any(turn is not None and turn.role == "assistant" for turn in request.turns("input")):
        return  # the usual case
    items = request.items("input")
    named = [_named(item) if begins(item, b"{") else item for item in items]
    if named != items:
        request.replace("input", msgspec.json.encode(named))


def _detail_images(request: ChatRequest) -> None:
    """Complete images, also those in the output of a tool, where vLLM refuses them. Raises BadRequest for files."""
    raw = bytes(request.fields.get("input", _NULL))
    if _IMAGE not in raw and _FILE not in raw:
        return  # the usual case
    items = request.value("input")
    if not isinstance(items, list):
        return
    detailed = [_detailed(item, f"input[{index}]") for index, item in enumerate(items)]
    if detailed != items:
        request.replace("input", msgspec.json.encode(detailed))


def _detailed(item: Any, at: str) -> Any:
    match item:
        case {"content": list(parts)}:
            return {**item, "content": [_detailed(part, f"{at}.content[{n}]") for n, part in enumerate(parts)]}
        case {"output": list(parts)}:
            return {**item, "output": [_detailed(part, f"{at}.output[{n}]") for n, part in enumerate(parts)]}
        case {"type": "input_file"}:
            raise BadRequest(
                f"{at}: files are not read here. Send the file's text, as a part of type 'input_text'.",
                param=at,
                code="invalid_value",
            )
        case {"type": "input_image", "file_id": str()} if item.get("image_url") is None:
            field = f"{at}.file_id"
            raise BadRequest(
                f"{field}: images are not read from files here. Send 'image_url', with the image as a data: URL.",
                param=field,
                code="invalid_value",
            )
        case {"type": "input_image"} if item.get("detail") is None:
            return {**item, "detail": "auto"}
        case _:
            return item


def _named(item: msgspec.Raw) -> msgspec.Raw:
    fields = {name: value for name, value in _OBJECT.decode(item).items() if value != _NULL}
    content = bytes(fields.get("content", _NULL))
    is_answer = fields.get("role") == _ASSISTANT and any(part in content for part in _ANSWER)
    if "type" in fields or not is_answer:
        return item
    return msgspec.Raw(msgspec.json.encode({"type": "message", **fields}))
