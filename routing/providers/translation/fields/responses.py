"""Fields of OpenAI's Responses, where chat completions answer."""

from collections.abc import Mapping

from routing.providers.translation.fields.reading import Fields, fields

DIRECT = {"type": "direct"}
"""The model calls a tool directly, not through code that it writes."""
FIELDS: Mapping[str, Fields] = {
    "request": fields(
        "model input instructions max_output_tokens temperature top_p stream tools tool_choice parallel_tool_calls text"
        " reasoning user",
        "metadata prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier stream_options",
        "access_programs context_management conversation image max_tool_calls moderation previous_response_id prompt",
        {
            "store": (False,),
            "background": (False,),
            "truncation": ("disabled",),
            "top_logprobs": (0,),
            "service_tier": ("auto", "default"),
            "include": ([], ["reasoning.encrypted_content"]),
        },
    ),
    "input[] (message)": fields("role content", "id phase status", "", {"type": ("message",)}),
    "content[] (input_text)": fields("type text", "prompt_cache_breakpoint"),
    "content[] (output_text)": fields("type text", "annotations logprobs"),
    "content[] (refusal)": fields("type refusal"),
    "content[] (input_image)": fields("type image_url detail", "prompt_cache_breakpoint", "file_id"),
    "content[] (input_file)": fields("type file_data filename", "detail prompt_cache_breakpoint", "file_id file_url"),
    "input[] (function_call)": fields(
        "type call_id name arguments", "id status", "namespace", {"async": (False,), "caller": (DIRECT,)}
    ),
    "input[] (function_call_output)": fields(
        "type call_id output", "id name status", "namespace", {"caller": (DIRECT,)}
    ),
    "input[] (reasoning)": fields("type", "id summary content encrypted_content status"),
    "tools[] (function)": fields(
        "type name description parameters strict",
        "",
        "output_schema",
        {"async": (False,), "defer_loading": (False,), "allowed_callers": (["direct"],)},
    ),
    "tool_choice (function)": fields("type name"),
    "text": fields("format", "", "", {"verbosity": ("medium",)}),
    "text.format (json_schema)": fields("type name description schema strict"),
    "reasoning": fields("effort", "generate_summary summary", "", {"context": ("auto",), "mode": ("standard",)}),
}
REFUSED: Mapping[str, str] = {
    "input[]": (
        "additional_tools apply_patch_call apply_patch_call_output code_interpreter_call compaction compaction_trigger"
        " computer_call computer_call_output configuration_update custom_tool_call custom_tool_call_output"
        " file_search_call image_generation_call item_reference local_shell_call local_shell_call_output"
        " mcp_approval_request mcp_approval_response mcp_call mcp_list_tools program program_output shell_call"
        " shell_call_output tool_search_call tool_search_output web_search_call"
    ),
    "tools[]": (
        "apply_patch code_interpreter computer computer_use_preview custom file_search image_generation local_shell mcp"
        " namespace programmatic_tool_calling shell tool_search web_search web_search_2025_08_26 web_search_preview"
        " web_search_preview_2025_03_11"
    ),
    "tool_choice": (
        "allowed_tools apply_patch code_interpreter computer computer_use computer_use_preview custom file_search"
        " image_generation mcp programmatic_tool_calling shell web_search_preview"
        " web_search_preview_2025_03_11"
    ),
}
"""Kinds of objects without a counterpart: nothing is kept between requests, and no tool is run."""
