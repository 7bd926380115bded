"""Fields of chat completions, where Anthropic's messages answer."""

from collections.abc import Mapping

from routing.providers.translation.fields.reading import Fields, fields

FIELDS: Mapping[str, Fields] = {
    "request": fields(
        "model messages max_tokens max_completion_tokens temperature top_p stop stream stream_options tools tool_choice"
        " parallel_tool_calls user response_format reasoning_effort",
        "metadata prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier",
        "audio function_call functions logit_bias moderation prediction seed web_search_options",
        {
            "n": (1,),
            "frequency_penalty": (0,),
            "presence_penalty": (0,),
            "logprobs": (False,),
            "top_logprobs": (0,),
            "modalities": (["text"],),
            "store": (False,),
            "service_tier": ("auto", "default"),
            "verbosity": ("medium",),
        },
    ),
    "messages[] (system, developer)": fields("role content", "name cache_control"),
    "messages[] (user)": fields("role content", "name cache_control"),
    "messages[] (assistant)": fields(
        "role content refusal tool_calls",
        "name annotations cache_control parsed provider_specific_fields reasoning reasoning_content reasoning_details"
        " thinking_blocks",
        "audio function_call",
    ),
    "messages[] (tool)": fields("role content tool_call_id", "name cache_control"),
    "content[] (text)": fields("type text cache_control", "prompt_cache_breakpoint"),
    "content[] (refusal)": fields("type refusal"),
    "content[] (image_url)": fields("type image_url cache_control", "prompt_cache_breakpoint"),
    "content[].image_url": fields("url", "detail"),
    "content[] (file)": fields("type file cache_control", "prompt_cache_breakpoint"),
    "content[].file": fields("file_data filename", "", "file_id"),
    "tool_calls[] (function)": fields(
        "id function", "extra_content index provider_specific_fields", "", {"type": ("function",)}
    ),
    "tool_calls[].function": fields("name arguments", "parsed_arguments provider_specific_fields"),
    "tools[] (function)": fields("type function", "cache_control"),
    "tools[].function": fields("name description parameters strict", "cache_control"),
    "tool_choice (function)": fields("function", "", "", {"type": ("function",)}),
    "tool_choice.function": fields("name"),
    "response_format (json_schema)": fields("type json_schema"),
    "response_format.json_schema": fields("schema description", "name strict"),
    "stream_options": fields("include_usage", "include_obfuscation continuous_usage_stats"),
}
"""What answers brought along may come back in the next request: annotations, thoughts, what an SDK has parsed."""
REFUSED: Mapping[str, str] = {
    "messages[]": "function",
    "content[]": "input_audio",
    "tool_calls[]": "custom",
    "tools[]": "custom",
    "tool_choice": "allowed_tools custom",
    "response_format": "json_object",
}
"""Kinds of objects without a counterpart."""
