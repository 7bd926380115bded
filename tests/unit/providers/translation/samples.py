"""A request per API with every translated field, and the place of each kind of object in it."""

import json
from typing import Any

CACHED = {"type": "ephemeral"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PDF = "JVBERi0="
Path = tuple[str | int, ...]

CHAT: dict[str, Any] = {
    "model": "big",
    "messages": [
        {"role": "system", "content": "be short"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "read this", "cache_control": CACHED},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}, "cache_control": CACHED},
                {
                    "type": "file",
                    "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"},
                    "cache_control": CACHED,
                },
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "no"}],
            "refusal": "never",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"a": 1})}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ],
    "max_tokens": 5,
    "max_completion_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": "END",
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [
        {
            "type": "function",
            "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA, "strict": True},
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "parallel_tool_calls": False,
    "user": "u",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "description": "a city", "schema": SCHEMA, "strict": True},
    },
    "reasoning_effort": "low",
}
CHAT_PLACES: dict[str, Path] = {
    "request": (),
    "messages[] (system, developer)": ("messages", 0),
    "messages[] (user)": ("messages", 1),
    "messages[] (assistant)": ("messages", 2),
    "messages[] (tool)": ("messages", 3),
    "content[] (text)": ("messages", 1, "content", 0),
    "content[] (refusal)": ("messages", 2, "content", 0),
    "content[] (image_url)": ("messages", 1, "content", 1),
    "content[].image_url": ("messages", 1, "content", 1, "image_url"),
    "content[] (file)": ("messages", 1, "content", 2),
    "content[].file": ("messages", 1, "content", 2, "file"),
    "tool_calls[] (function)": ("messages", 2, "tool_calls", 0),
    "tool_calls[].function": ("messages", 2, "tool_calls", 0, "function"),
    "tools[] (function)": ("tools", 0),
    "tools[].function": ("tools", 0, "function"),
    "tool_choice (function)": ("tool_choice",),
    "tool_choice.function": ("tool_choice", "function"),
    "response_format (json_schema)": ("response_format",),
    "response_format.json_schema": ("response_format", "json_schema"),
    "stream_options": ("stream_options",),
    "messages[]": ("messages", 1),
    "content[]": ("messages", 1, "content", 0),
    "tool_calls[]": ("messages", 2, "tool_calls", 0),
    "tools[]": ("tools", 0),
    "tool_choice": ("tool_choice",),
    "response_format": ("response_format",),
}

MESSAGES: dict[str, Any] = {
    "model": "big",
    "max_tokens": 9,
    "system": "be short",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "read this"},
                {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                    "title": "a.pdf",
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": [{"type": "text", "text": "none"}],
                    "is_error": True,
                }
            ],
        },
        {"role": "system", "content": "be longer"},
    ],
    "stop_sequences": ["END"],
    "stream": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "tools": [{"name": "weather", "description": "of a city", "input_schema": SCHEMA, "strict": True}],
    "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
}
MESSAGES_PLACES: dict[str, Path] = {
    "request": (),
    "messages[] (user)": ("messages", 0),
    "messages[] (assistant)": ("messages", 1),
    "messages[] (system)": ("messages", 3),
    "content[] (text)": ("messages", 0, "content", 0),
    "content[] (image)": ("messages", 0, "content", 1),
    "content[] (document)": ("messages", 0, "content", 2),
    "source (base64)": ("messages", 0, "content", 2, "source"),
    "source (url)": ("messages", 0, "content", 1, "source"),
    "content[] (tool_use)": ("messages", 1, "content", 2),
    "content[] (tool_result)": ("messages", 2, "content", 0),
    "content[] (thinking)": ("messages", 1, "content", 0),
    "content[] (redacted_thinking)": ("messages", 1, "content", 1),
    "tools[] (custom)": ("tools", 0),
    "tool_choice": ("tool_choice",),
    "metadata": ("metadata",),
    "output_config": ("output_config",),
    "output_config.format (json_schema)": ("output_config", "format"),
    "content[]": ("messages", 0, "content", 0),
    "content[].content[] (tool_result)": ("messages", 2, "content", 0, "content", 0),
    "source (image)": ("messages", 0, "content", 1, "source"),
    "source (document)": ("messages", 0, "content", 2, "source"),
    "tools[]": ("tools", 0),
}

RESPONSES: dict[str, Any] = {
    "model": "big",
    "instructions": "be short",
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "read this"},
                {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
                {"type": "input_file", "file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "so"}, {"type": "refusal", "refusal": "no"}],
        },
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
    ],
    "max_output_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "stream": True,
    "tools": [
        {"type": "function", "name": "weather", "description": "of a city", "parameters": SCHEMA, "strict": True}
    ],
    "tool_choice": {"type": "function", "name": "weather"},
    "parallel_tool_calls": False,
    "text": {
        "format": {"type": "json_schema", "name": "answer", "description": "a city", "schema": SCHEMA, "strict": True}
    },
    "reasoning": {"effort": "low"},
    "user": "u",
}
RESPONSES_PLACES: dict[str, Path] = {
    "request": (),
    "input[] (message)": ("input", 0),
    "content[] (input_text)": ("input", 0, "content", 0),
    "content[] (output_text)": ("input", 1, "content", 0),
    "content[] (refusal)": ("input", 1, "content", 1),
    "content[] (input_image)": ("input", 0, "content", 1),
    "content[] (input_file)": ("input", 0, "content", 2),
    "input[] (reasoning)": ("input", 2),
    "input[] (function_call)": ("input", 3),
    "input[] (function_call_output)": ("input", 4),
    "tools[] (function)": ("tools", 0),
    "tool_choice (function)": ("tool_choice",),
    "text": ("text",),
    "text.format (json_schema)": ("text", "format"),
    "reasoning": ("reasoning",),
    "input[]": ("input", 0),
    "tools[]": ("tools", 0),
    "tool_choice": ("tool_choice",),
}
