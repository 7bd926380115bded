"""The routes of the chat family. Their schemas are vLLM's own (`scripts/chat-schemas`), with our fields added."""

from pathlib import Path

import msgspec

from runtime.http.chat.endpoints import ENDPOINTS
from runtime.http.responses.recording import serve_stored
from runtime.http.route import RouteGroup
from runtime.http.schema import JSON, STREAM, STRING, Json, component, nullable

VLLM: dict[str, Json] = msgspec.json.decode(Path(__file__).with_name("schemas.json").read_bytes())
OURS: dict[str, Json] = {
    "model": {
        "type": "string",
        "description": "A chat model, an alias, an adapter (`name`, `name@v2`, `name@alias`) or `base:adapter`.",
        "examples": ["starter-chat", "uppercase", "starter-chat:uppercase@v2"],
    },
    "adapter_id": nullable({**STRING, "description": "An adapter of `model`, named apart from it (LoRAX's field)."}),
}
"""Fields of every request."""
for _name, _schema in VLLM.items():
    if "model" in _schema.get("properties", ()) and _name.endswith("Request"):
        _required = [*_schema.get("required", ()), "model"]
        _schema |= {"properties": _schema["properties"] | OURS, "required": list(dict.fromkeys(_required))}
    component(_name, _schema)

_route = RouteGroup("Chat")
_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
_STREAMS = ("Prefer", "Progress")
_HELLO = [{"role": "user", "content": "turn on the lamp"}]
_CHAT = {"model": "starter-chat", "messages": _HELLO}
_route.endpoint(
    _BY_PATH["/v1/chat/completions"],
    id="createChatCompletion",
    summary="Chat completion (OpenAI)",
    answer={JSON: "ChatCompletion", **STREAM},
    body="ChatCompletionRequest",
    parameters=_STREAMS,
    examples={
        "adapter": {"model": "uppercase", "messages": _HELLO},
        "stream": {**_CHAT, "stream": True, "stream_options": {"include_usage": True}},
    },
)
_route.endpoint(
    _BY_PATH["/v1/completions"],
    id="createCompletion",
    summary="Text completion (OpenAI)",
    answer={JSON: "Completion", **STREAM},
    body="CompletionRequest",
    parameters=_STREAMS,
    examples={"prompt": {"model": "starter-chat", "prompt": "what is a slot?", "max_tokens": 64}},
)
_route.endpoint(
    _BY_PATH["/v1/responses"],
    id="createResponse",
    summary="Response (OpenAI)",
    serve=serve_stored,
    answer={JSON: "ResponsesResponse", **STREAM},
    body="ResponsesRequest",
    parameters=_STREAMS,
    examples={"input": {"model": "starter-chat", "input": "what is a slot?"}},
)
_route.endpoint(
    _BY_PATH["/v1/messages"],
    id="createMessage",
    summary="Message (Anthropic)",
    answer={JSON: "AnthropicMessage", **STREAM},
    body="AnthropicRequest",
    parameters=_STREAMS,
    examples={"adapter": {"model": "uppercase", "max_tokens": 64, "messages": _HELLO}},
)
_route.endpoint(
    _BY_PATH["/v1/messages/count_tokens"],
    id="countMessageTokens",
    summary="Tokens of a message (Anthropic)",
    answer="CountTokens",
    body="CountTokensRequest",
    examples={"messages": _CHAT},
)
_route.endpoint(
    _BY_PATH["/tokenize"],
    id="tokenize",
    summary="Text or messages to token ids (vLLM)",
    description="Send `prompt` or `messages`.",
    answer="Tokens",
    body=("TokenizeCompletionRequest", "TokenizeChatRequest"),
    examples={"prompt": {"model": "starter-chat", "prompt": "hello"}},
)
_route.endpoint(
    _BY_PATH["/detokenize"],
    id="detokenize",
    summary="Token ids to text (vLLM)",
    answer="Detokenized",
    body="DetokenizeRequest",
    examples={"tokens": {"model": "starter-chat", "tokens": [1, 2, 3]}},
)
