"""Which fields may be null, and which of those are required: the vendors' Python types do not say.

True: the field is always present, with a value or null. False: it may also be left out. Fields that are not listed may
be left out but are never null. Source: the types of the vendors' TypeScript packages, which are generated from the same
OpenAPI documents and write `field: T | null` or `field?: T | null` where Python's have one `Optional`: openai 7.57.0
(`resources/`), @anthropic-ai/sdk 1.12.0 (`resources/messages`, `resources/shared`). Not listed is a text's `citations`,
which Anthropic's answers leave out, and whose null other clients refuse. None of Cohere's fields may be null.
"""

from collections.abc import Mapping

from runtime.gateway.routing.dispatcher import RouterCardView
from runtime.gateway.views.values import AdapterCardView, ModelView

NULLABLE: Mapping[str, Mapping[str, bool]] = {
    # chat completions, completions
    "ChatCompletion": {"metadata": False, "moderation": False, "service_tier": False},
    "ChatCompletionChunk": {"moderation": False, "service_tier": False, "usage": False},
    "ChatCompletionMessage": {"audio": False, "content": True, "function_call": False, "refusal": True},
    "ChatCompletionTokenLogprob": {"bytes": True},
    "Choice": {"finish_reason": True, "logprobs": True},
    "ChoiceDelta": {"content": False, "refusal": False},
    "ChoiceLogprobs": {"content": True, "refusal": True},
    "CompletionChoice": {"logprobs": True},
    "TopLogprob": {"bytes": True},
    # administration, by the examples of OpenAI's reference
    "Project": {"archived_at": True},
    "UsageCostsResponse": {"next_page": True},
    "DataResultOrganizationCostsResult": {"api_key_id": False, "line_item": False, "project_id": False},
    # responses
    "FunctionTool": {
        "allowed_callers": False,
        "description": False,
        "output_schema": False,
        "parameters": True,
        "strict": True,
    },
    "Reasoning": {"context": False, "effort": False, "generate_summary": False, "summary": False},
    "Response": {  # real answers always have more of these than the document requires
        "access_programs": True,
        "background": True,
        "completed_at": True,
        "conversation": False,
        "error": True,
        "incomplete_details": True,
        "instructions": True,
        "max_output_tokens": True,
        "max_tool_calls": True,
        "metadata": True,
        "moderation": False,
        "previous_response_id": True,
        "prompt": False,
        "prompt_cache_key": True,
        "prompt_cache_retention": True,
        "reasoning": True,
        "safety_identifier": True,
        "service_tier": False,
        "temperature": True,
        "top_logprobs": True,
        "top_p": True,
        "truncation": False,
    },
    "ResponseErrorEvent": {"code": True, "param": True},
    "ResponseFormatTextJSONSchemaConfig": {"strict": False},
    "ResponseFunctionToolCall": {"caller": False},
    "ResponseOutputMessage": {"phase": False},
    "ResponseReasoningItem": {"encrypted_content": False},
    "ResponseTextConfig": {"verbosity": False},
    # models, errors
    "ErrorObject": {"code": True, "param": True},
    "Model": {"shutdown_date": False},
    # messages
    "Delta": {"container": True, "stop_details": True, "stop_reason": True, "stop_sequence": True},
    "ErrorResponse": {"request_id": True},
    "Message": {
        "container": True,
        "diagnostics": True,
        "stop_details": True,
        "stop_reason": True,
        "stop_sequence": True,
    },
    "MessageDeltaUsage": dict.fromkeys(
        (
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
            "input_tokens",
            "output_tokens_details",
            "server_tool_use",
        ),
        True,
    ),
    "ToolUseBlock": {"toolset_name": False},
    "Usage": dict.fromkeys(
        (
            "cache_creation",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
            "inference_geo",
            "output_tokens_details",
            "server_tool_use",
            "service_tier",
            "speed",
        ),
        True,
    ),
}

_OURS = "our own field of a model"
MORE: Mapping[str, Mapping[str, str]] = {
    "ChatCompletionMessage": {"reasoning": "vLLM's; OpenAI's chat completions have no reasoning"},
    "Choice": {"stop_reason": "vLLM's: which stop sequence or token ended the answer"},
    "ChoiceDelta": {"reasoning": "as in a message"},
    "CompletionChoice": {
        "prompt_logprobs": "vLLM's, with `echo` and `logprobs`",
        "prompt_token_ids": "vLLM's, with `echo`",
        "stop_reason": "as in a chat completion",
    },
    "MessageTokensCount": {"context_management": "Anthropic's beta has it"},
    "Model": {
        field: _OURS for kind in (ModelView, AdapterCardView, RouterCardView) for field in kind.__struct_fields__
    },
    "OutputTokensDetails": {"tool_output_tokens": "vLLM's count for tools that it calls itself"},
    "RerankResponse": dict.fromkeys(("model", "object", "usage"), "Jina's, on the path that both share"),
    "Response": {
        **dict.fromkeys(("frequency_penalty", "presence_penalty"), "the request's, as vLLM took them"),
        "store": "OpenAI's answers have it",
    },
    "ResponseFunctionCallArgumentsDoneEvent": {"name": "the function's, as in OpenAI's earlier documents"},
    "TranscriptionVerbose": {"task": "OpenAI's API reference shows it"},
    "V2RerankResponseResultsItem": {"document": "Cohere v1's, for requests with `return_documents`"},
}
"""Fields of ours or of vLLM's that the vendor's type lacks, and what they are for. Clients ignore them."""
