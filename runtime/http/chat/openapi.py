"""The chat family in the OpenAPI document. vLLM answers these paths, and checks the fields that stand here and more."""

from runtime.http.errors import Dialect
from runtime.http.openapi_parts import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    STREAM,
    STRING,
    Json,
    Operations,
    array,
    either,
    json_of,
    model_call,
    nullable,
    one_of,
    record,
    ref,
)

TAG = "Chat"
_MODEL: Json = {
    "type": "string",
    "description": "A chat model, an alias, an adapter (`name`, `name@v2`, `name@alias`) or `base:adapter`.",
    "examples": ["starter-chat", "uppercase", "starter-chat:uppercase@v2"],
}
_ADAPTER: Json = nullable({**STRING, "description": "An adapter of `model`, named apart from it (LoRAX's field)."})
_SAMPLING: dict[str, Json] = {
    "temperature": nullable(NUMBER),
    "top_p": nullable(NUMBER),
    "top_k": nullable(INTEGER),
    "min_p": nullable(NUMBER),
    "n": nullable(INTEGER),
    "seed": nullable(INTEGER),
    "stop": either(STRING, array(STRING), {"type": "null"}),
    "frequency_penalty": nullable(NUMBER),
    "presence_penalty": nullable(NUMBER),
    "repetition_penalty": nullable(NUMBER),
    "logit_bias": nullable(ANY_OBJECT),
    "stream": nullable(BOOLEAN),
    "stream_options": nullable(record({"include_usage": BOOLEAN}, [])),
    "user": nullable(STRING),
}
_CONTENT = either(STRING, array(ANY_OBJECT), {"type": "null"})
_TOOLS = nullable(array(ANY_OBJECT))

SCHEMAS: dict[str, Json] = {
    "ChatMessage": record(
        {
            "role": {**STRING, "examples": ["system", "user", "assistant", "tool"]},
            "content": _CONTENT,
            "name": nullable(STRING),
            "tool_calls": _TOOLS,
            "tool_call_id": nullable(STRING),
        },
        ["role"],
    ),
    "ChatCompletionRequest": record(
        {
            "model": _MODEL,
            "messages": array(ref("ChatMessage")),
            "adapter_id": _ADAPTER,
            "max_tokens": nullable(INTEGER),
            "max_completion_tokens": nullable(INTEGER),
            **_SAMPLING,
            "logprobs": nullable(BOOLEAN),
            "top_logprobs": nullable(INTEGER),
            "tools": _TOOLS,
            "tool_choice": either(STRING, ANY_OBJECT, {"type": "null"}),
            "parallel_tool_calls": nullable(BOOLEAN),
            "response_format": nullable(ANY_OBJECT),
        },
        ["model", "messages"],
    ),
    "Usage": record(
        {"prompt_tokens": COUNT, "completion_tokens": nullable(COUNT), "total_tokens": COUNT},
        ["prompt_tokens", "total_tokens"],
    ),
    "ChatCompletion": record(
        {
            "id": STRING,
            "object": {"const": "chat.completion"},
            "created": INTEGER,
            "model": {**STRING, "description": "The name that the client sent."},
            "choices": array(
                record(
                    {"index": INTEGER, "message": ref("ChatMessage"), "finish_reason": nullable(STRING)},
                    ["index", "message"],
                )
            ),
            "usage": ref("Usage"),
        }
    ),
    "CompletionRequest": record(
        {
            "model": _MODEL,
            "prompt": either(STRING, array(STRING), array(INTEGER), array(array(INTEGER)), {"type": "null"}),
            "adapter_id": _ADAPTER,
            "max_tokens": nullable(INTEGER),
            **_SAMPLING,
            "logprobs": nullable(INTEGER),
            "echo": nullable(BOOLEAN),
            "suffix": nullable(STRING),
        },
        ["model", "prompt"],
    ),
    "Completion": record(
        {
            "id": STRING,
            "object": {"const": "text_completion"},
            "created": INTEGER,
            "model": STRING,
            "choices": array(record({"index": INTEGER, "text": STRING}, ["index", "text"])),
            "usage": ref("Usage"),
        }
    ),
    "ResponsesRequest": record(
        {
            "model": _MODEL,
            "input": either(STRING, array(ANY_OBJECT)),
            "adapter_id": _ADAPTER,
            "instructions": nullable(STRING),
            "max_output_tokens": nullable(INTEGER),
            "temperature": nullable(NUMBER),
            "top_p": nullable(NUMBER),
            "stream": nullable(BOOLEAN),
            "tools": array(ANY_OBJECT),
            "text": nullable(ANY_OBJECT),
        },
        ["model", "input"],
    ),
    "ResponsesResponse": record(
        {
            "id": STRING,
            "object": {"const": "response"},
            "model": STRING,
            "status": STRING,
            "output": array(ANY_OBJECT),
            "usage": nullable(ANY_OBJECT),
        },
        ["id", "object", "model", "output"],
    ),
    "AnthropicRequest": record(
        {
            "model": _MODEL,
            "max_tokens": INTEGER,
            "messages": array(
                record({"role": one_of("user", "assistant"), "content": either(STRING, array(ANY_OBJECT))})
            ),
            "adapter_id": _ADAPTER,
            "system": either(STRING, array(ANY_OBJECT), {"type": "null"}),
            "stop_sequences": nullable(array(STRING)),
            "stream": nullable(BOOLEAN),
            "temperature": nullable(NUMBER),
            "top_k": nullable(INTEGER),
            "top_p": nullable(NUMBER),
            "tools": _TOOLS,
            "tool_choice": nullable(ANY_OBJECT),
        },
        ["model", "max_tokens", "messages"],
    ),
    "AnthropicMessage": record(
        {
            "id": STRING,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": STRING,
            "content": array(ANY_OBJECT),
            "stop_reason": nullable(STRING),
            "usage": record({"input_tokens": COUNT, "output_tokens": COUNT}),
        }
    ),
    "CountTokensRequest": record(
        {
            "model": _MODEL,
            "messages": array(ANY_OBJECT),
            "adapter_id": _ADAPTER,
            "system": either(STRING, array(ANY_OBJECT), {"type": "null"}),
            "tools": _TOOLS,
        },
        ["model", "messages"],
    ),
    "CountTokens": record({"input_tokens": COUNT}),
    "TokenizeRequest": record(
        {
            "model": _MODEL,
            "prompt": STRING,
            "messages": array(ref("ChatMessage")),
            "adapter_id": _ADAPTER,
            "add_special_tokens": BOOLEAN,
            "return_token_strs": nullable(BOOLEAN),
        },
        ["model"],
    ),
    "Tokens": record({"count": COUNT, "max_model_len": COUNT, "tokens": array(INTEGER)}),
    "DetokenizeRequest": record(
        {"model": _MODEL, "tokens": array(INTEGER), "adapter_id": _ADAPTER}, ["model", "tokens"]
    ),
    "Detokenized": record({"prompt": STRING}),
}

_HELLO = [{"role": "user", "content": "turn on the lamp"}]
_STREAMS = ("Prefer", "Progress")

OPERATIONS: Operations = {
    ("post", "/v1/chat/completions"): model_call(
        "createChatCompletion", TAG, "Chat completion (OpenAI)", {**json_of("ChatCompletion"), **STREAM},
        body=json_of("ChatCompletionRequest"), parameters=_STREAMS,
        examples={
            "adapter": {"model": "uppercase", "messages": _HELLO},
            "stream": {
                "model": "starter-chat", "messages": _HELLO, "stream": True, "stream_options": {"include_usage": True},
            },
        },
    ),
    ("post", "/v1/completions"): model_call(
        "createCompletion", TAG, "Text completion (OpenAI)", {**json_of("Completion"), **STREAM},
        body=json_of("CompletionRequest"), parameters=_STREAMS,
        examples={"prompt": {"model": "starter-chat", "prompt": "what is a slot?", "max_tokens": 64}},
    ),
    ("post", "/v1/responses"): model_call(
        "createResponse", TAG, "Response (OpenAI)", {**json_of("ResponsesResponse"), **STREAM},
        body=json_of("ResponsesRequest"), parameters=_STREAMS,
        examples={"input": {"model": "starter-chat", "input": "what is a slot?"}},
    ),
    ("post", "/v1/messages"): model_call(
        "createMessage", TAG, "Message (Anthropic)", {**json_of("AnthropicMessage"), **STREAM},
        body=json_of("AnthropicRequest"), parameters=_STREAMS, dialects=(Dialect.ANTHROPIC,),
        examples={"adapter": {"model": "uppercase", "max_tokens": 64, "messages": _HELLO}},
    ),
    ("post", "/v1/messages/count_tokens"): model_call(
        "countMessageTokens", TAG, "Tokens of a message (Anthropic)", json_of("CountTokens"),
        body=json_of("CountTokensRequest"), dialects=(Dialect.ANTHROPIC,),
        examples={"messages": {"model": "starter-chat", "messages": _HELLO}},
    ),
    ("post", "/tokenize"): model_call(
        "tokenize", TAG, "Text or messages to token ids (vLLM)", json_of("Tokens"), body=json_of("TokenizeRequest"),
        description="Send `prompt` or `messages`.",
        examples={"prompt": {"model": "starter-chat", "prompt": "hello"}},
    ),
    ("post", "/detokenize"): model_call(
        "detokenize", TAG, "Token ids to text (vLLM)", json_of("Detokenized"), body=json_of("DetokenizeRequest"),
        examples={"tokens": {"model": "starter-chat", "tokens": [1, 2, 3]}},
    ),
}  # fmt: skip
