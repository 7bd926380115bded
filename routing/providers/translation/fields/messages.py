"""Fields of Anthropic's messages, where chat completions answer."""

from collections.abc import Mapping

from routing.providers.translation.fields.reading import Fields, fields

DIRECT = {"type": "direct"}
"""The model calls a tool directly, not through code that it writes."""
FIELDS: Mapping[str, Fields] = {
    "request": fields(
        "model messages max_tokens system stop_sequences stream temperature top_p top_k tools tool_choice metadata"
        " output_config",
        "cache_control",
        "container diagnostics inference_geo user_profile_id workspace_id",
        {
            "thinking": ({"type": "disabled"},),
            "service_tier": ("auto", "standard_only"),
            "speed": ("standard",),
        },
    ),
    "messages[] (user)": fields("role content"),
    "messages[] (assistant)": fields("role content"),
    "messages[] (system)": fields("role content"),
    "content[] (text)": fields("type text", "cache_control citations"),
    "content[] (image)": fields("type source", "cache_control", "", {"transformations": ({},)}),
    "content[] (document)": fields(
        "type source title", "cache_control", "context", {"citations": ({"enabled": False},)}
    ),
    "source (base64)": fields("type media_type data"),
    "source (url)": fields("type url"),
    "content[] (tool_use)": fields("type id name input", "cache_control", "toolset_name", {"caller": (DIRECT,)}),
    "content[] (tool_result)": fields("type tool_use_id content is_error", "cache_control", "toolset_name"),
    "content[] (thinking)": fields("type", "thinking signature"),
    "content[] (redacted_thinking)": fields("type", "data"),
    "tools[] (custom)": fields(
        "name description input_schema strict",
        "cache_control eager_input_streaming",
        "input_examples",
        {"type": ("custom",), "defer_loading": (False,), "allowed_callers": (["direct"],)},
    ),
    "tool_choice": fields("type name disable_parallel_tool_use"),
    "metadata": fields("user_id"),
    "output_config": fields("format effort"),
    "output_config.format (json_schema)": fields("schema", "", "", {"type": ("json_schema",)}),
}
REFUSED: Mapping[str, str] = {
    "content[]": (
        "bash_code_execution_tool_result code_execution_tool_result container_upload search_result server_tool_use"
        " text_editor_code_execution_tool_result tool_search_tool_result web_fetch_tool_result web_search_tool_result"
    ),
    "content[].content[] (tool_result)": "browser_state document image search_result tool_reference",
    "source (image)": "file",
    "source (document)": "content file text url",
    "tools[]": "",
}
"""Kinds of objects without a counterpart. Tools that are run by Anthropic are all refused, whatever they are called."""
