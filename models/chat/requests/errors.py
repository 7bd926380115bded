"""Rewrite vLLM's errors for clients: short, with the faulty field and advice that applies here."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from models.chat.requests.request import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES, ChatRequest, begins
from registry.base.json import NOT_JSON
from registry.errors import BadRequest, ContextLengthExceeded, short

LONGEST_ERROR = 4 << 10
ADVICE = {
    b"As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    b"tokenizer does not define one.": (
        b"This model has no chat template: continue a text with /v1/completions, or let its recipe name a template in "
        b"engine.flags.chat_template."
    ),
    b"tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set": (
        b"tool choice needs a parser of this model's calls: leave 'tools' out, or let its recipe name one in "
        b"engine.flags.tool_call_parser, with engine.flags.enable_auto_tool_choice: true."
    ),
    b" requires --tool-call-parser to be set": (
        b" needs a parser of this model's calls: leave 'tools' out, or let its recipe name one in "
        b"engine.flags.tool_call_parser."
    ),
    b"Start the server with --trust-request-mm-kwargs only when clients are trusted.": (
        b"Leave them out, or let this model's recipe allow some: engine.flags.trust_request_mm_kwargs: true."
    ),
    b"--trust-request-chat-template is not set. Refused request with untrusted chat template.": (
        b"a template is a program: let the model's recipe name it in engine.flags.chat_template."
    ),
    b" To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.": b" Send several requests.",
    b" Set `--limit-mm-per-prompt` to increase this limit.": (
        b" This model's recipe may allow more: engine.flags.limit_mm_per_prompt."
    ),
}
"""vLLM's advice for its own command line, with the equivalent here."""
OVERLONG = frozenset({"input_text", "input_tokens"})
"""vLLM's parameters in the error for a prompt that is longer than the context."""
TEXT_ONLY = "is not a multimodal model"
"""End of a message of vLLM that contains the engine's name of the model (a digest, or the base)."""
SEND_TEXT = "This model reads text only: leave out images, sounds and videos."
NO_PROMPT = ("Cannot apply chat template to an empty conversation", "You must pass at least one prompt")
"""Beginnings of vLLM's messages about a prompt without any text."""
PROMPTS = {CHAT: "messages", COMPLETIONS: "prompt", RESPONSES: "input"}
SENT_AS = {"max_tokens": ("max_completion_tokens", "max_output_tokens"), "stop": ("stop_sequences",)}
"""Names of fields in vLLM's messages, and those under which other dialects send them."""
_WORDS = re.compile(r"\b[a-z][a-z_]*")
_COUNTS = re.compile(r"maximum context length is (\d+) tokens\..* contains (?:at least )?(\d+) input tokens")
"""Sizes of context and prompt in vLLM's message. Claude Code reads both from Anthropic's message."""
_NUMBER = re.compile(rb'"?[-0-9]')
"""The beginning of a number, possibly in a string, which vLLM accepts."""


class _Error(msgspec.Struct):
    error: object = None
    message: str = ""


def shorten(data: bytes) -> bytes:
    """Shorten the message of vLLM's error body, which may quote a whole request, and replace its advice."""
    for shell, here in ADVICE.items():
        data = data.replace(shell, here)
    if len(data) <= LONGEST_ERROR:
        return data
    try:
        whole = msgspec.json.decode(data, type=_Error)
        inner = whole.error if isinstance(whole.error, dict) else {"message": whole.message or whole.error}
    except NOT_JSON:
        inner = {}
    cut = {key: short(value, 1_000) if isinstance(value, str) else None for key, value in inner.items()}
    text = {"message": cut.get("message") or "vLLM refused this request"}
    known = {key: inner[key] if isinstance(inner.get(key), int) else cut.get(key) for key in ("type", "param", "code")}
    return msgspec.json.encode({"error": text | known})


def add_param(data: bytes, request: ChatRequest) -> bytes:
    """Add the field that vLLM's error is about: the first of the request's numbers mentioned in the message.

    The error for a prompt that is too long gets the code by which agents decide to compact a conversation.
    """
    try:
        whole = msgspec.json.decode(data, type=dict[str, Any])
        error = whole.get("error")
        if not isinstance(error, dict):
            return data
        text, _, parameter = str(error.get("message")).rpartition(" (parameter=")
        if parameter.partition(",")[0] in OVERLONG or error.get("param") in OVERLONG:
            return msgspec.json.encode({**whole, "error": _too_long(error, text, request)})
        if parameter.startswith("logprobs,") and request.has("top_logprobs"):  # only Completions has that number
            named = {**error, "message": text, "param": "top_logprobs"}
            return msgspec.json.encode({**whole, "error": named})
        if (renamed := _as_sent(error, request)) is not None:
            return msgspec.json.encode({**whole, "error": renamed})
        if error.get("param") is not None:
            return data
        if text.endswith(TEXT_ONLY) or str(error.get("message")).endswith(TEXT_ONLY):
            param = PROMPTS.get(request.path)
            return msgspec.json.encode({**whole, "error": {**error, "message": SEND_TEXT, "param": param}})
        if str(error.get("message")).startswith(NO_PROMPT):
            return msgspec.json.encode({**whole, "error": {**error, "param": PROMPTS.get(request.path)}})
        numbers = _numbers(request.fields)
    except NOT_JSON:
        return data
    words = _WORDS.findall(str(error.get("message")))
    param = next((numbers[word] for word in words if word in numbers), None)
    return data if param is None else msgspec.json.encode({**whole, "error": {**error, "param": param}})


def _as_sent(error: Mapping[str, Any], request: ChatRequest) -> dict[str, Any] | None:
    """Call a field by the name that the client sent; None if the error is about none that vLLM knows by another."""
    message = str(error.get("message"))
    for name, others in SENT_AS.items():
        sent = next((other for other in others if request.has(other)), None)
        if sent is not None and not request.has(name) and message.startswith(f"{name} "):
            return {**error, "message": message.replace(name, sent), "param": sent}
    return None


def _too_long(error: Mapping[str, Any], text: str, request: ChatRequest) -> dict[str, Any]:
    message = text or str(error.get("message"))
    named = {**error, "type": ContextLengthExceeded.type, "code": ContextLengthExceeded.code}
    if request.path in (MESSAGES, COUNT_TOKENS):  # its clients see no code, and look for these words
        counts = _COUNTS.search(message)
        sizes = "" if counts is None else f"{counts[2]} tokens > {counts[1]} maximum. "
        return {**named, "message": f"prompt is too long: {sizes}{message}"}
    return {**named, "message": message, "param": PROMPTS.get(request.path)}


def explain_failure(*, reached_engine: bool, constrained: bool) -> BadRequest | None:
    """Explain a 5xx of a running engine; None if it is the engine's fault.

    If nothing reached the engine, vLLM's preprocessing failed on the body. Otherwise the cause is a grammar that no
    text satisfies, such as the schema {"$ref": "#"}, for which vLLM reports an internal error.
    """
    if not reached_engine:
        return BadRequest("vLLM could not make sense of this request", code="unprocessable_request")
    if constrained:
        return BadRequest("no text satisfies the schema or grammar of this request", code="unsatisfiable_constraint")
    return None


def _numbers(fields: Mapping[str, msgspec.Raw], within: str = "") -> dict[str, str]:
    """Map the name of each number in `fields`, and in objects there, to its path."""
    paths: dict[str, str] = {}
    for name, raw in fields.items():
        if _NUMBER.match(raw):
            paths[name] = within + name
        elif not within and begins(raw, b"{"):
            paths = _numbers(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]), f"{name}.") | paths
    return paths


Path = tuple[str | int, ...]
CALLS = ("items", "anyOf")
"""Path to the functions in vLLM's schema for a required call, which is a list of calls of any function."""
PARAMETERS = ("properties", "parameters")
TAG_SCHEMA = "json_schema"
"""The key of a function's parameters in vLLM's structural tag for calls in the model's own format."""
FIELDS = {CHAT: "function.parameters", RESPONSES: "parameters", MESSAGES: "input_schema"}
"""The field with a function's parameters in an entry of `tools`, by dialect."""


def locate(request: ChatRequest, path: Path) -> tuple[str, Path]:
    """Map a path in the schema that vLLM built to the request's field with that schema, and the path in it."""
    choice = request.value("tool_choice")
    calls = "tools" in request.fields and (request.requires_call() or _name(choice))
    if calls and path[:1] == ("format",) and TAG_SCHEMA in path:
        return _locate_in_tag(request, path)
    if "tools" in request.fields and request.requires_call():
        if path[:2] == CALLS and path[3:5] == PARAMETERS:
            return _field(request, _name(request.value("tools")[path[2]])), path[5:]
        return "tools", path
    if "tools" in request.fields and _name(choice):
        return _field(request, _name(choice)), path
    if request.path == RESPONSES and request.object("text").get("format"):
        return "text.format.schema", path
    if request.path == MESSAGES and "output_config" in request.fields:
        return "output_config.format.schema", path
    form = request.object("response_format").get("type")
    if form in ("json_schema", "structural_tag"):
        return "response_format" + (".json_schema.schema" if form == "json_schema" else ""), path
    if "structured_outputs" in request.fields:
        tag = request.object("structured_outputs").get("structural_tag") is not None
        return f"structured_outputs.{'structural_tag' if tag else 'json'}", path
    return "tools", path


def _locate_in_tag(request: ChatRequest, path: Path) -> tuple[str, Path]:
    tools, keys = request.given("tools") or [], list(path)
    name = _name(request.value("tool_choice")) or (_name(tools[0]) if len(tools) == 1 else "")
    return _field(request, name) if name else "tools", tuple(keys[keys.index(TAG_SCHEMA) + 1 :])


def _name(choice: Any) -> str:
    """Return the function that `tool_choice` names; '' if none."""
    if not isinstance(choice, dict):
        return ""
    inner = choice.get("function")
    return str((inner if isinstance(inner, dict) else choice).get("name") or "")


def _field(request: ChatRequest, name: str) -> str:
    """Return the field with the parameters of a function, in the tools as the client sent them."""
    for index, tool in enumerate(request.given("tools") or ()):
        if isinstance(tool, dict) and _name(tool) == name:
            return f"tools[{index}].{FIELDS.get(request.path, '')}"
    return "tools"  # such as in a namespace
