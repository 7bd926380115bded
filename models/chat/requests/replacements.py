"""Advice on what to send instead of a field that a path does not support."""

from collections.abc import Mapping

from models.chat.requests.moves import GUIDED
from models.chat.requests.request import CHAT, COMPLETIONS, MESSAGES, RESPONSES

PARSES_NO_REASONING = (
    "it needs a parser of this model's reasoning. Its recipe may name one in engine.flags.reasoning_parser."
)
_ADAPTER = "register the adapter, and send its name as 'model' or 'adapter_id'."
INSTEAD: Mapping[str, str] = {
    "best_of": "ask for several with 'n', and choose among them.",
    "audio": "no model here speaks.",
    "conversation": "send the conversation as 'input'.",
    "extra_body": "write the fields in it into the body itself, as OpenAI's Python client does.",
    "adapters": _ADAPTER,
    "lora": _ADAPTER,
    "functions": "send 'tools'.",
    "logits_processors": "a client may not name code to run.",
    "function_call": "send 'tool_choice'.",
    "tools": "it needs a parser of this model's calls. Its recipe may name one in engine.flags.tool_call_parser, with "
    "engine.flags.enable_auto_tool_choice: true.",
    "stop_sequences": "send 'stop'.",
    "max_new_tokens": "send 'max_tokens'.",
    **{name: f"send 'structured_outputs': {{\"{kind}\": ...}} alone." for name, kind in GUIDED.items()},
    "repeat_penalty": "send 'repetition_penalty' alone.",
    "n_predict": "send 'max_tokens' alone.",
}
"""Replacements for fields of earlier vLLMs, OpenAI's older clients and other servers."""
_SYSTEM = "send it as a message of the role 'system'."
INSTEAD_AT: Mapping[str, Mapping[str, str]] = {
    CHAT: {
        "input": "send 'messages'.",
        "prompt": "send 'messages', or the request to /v1/completions.",
        "instructions": _SYSTEM,
        "system": _SYSTEM,
        "max_output_tokens": "send 'max_completion_tokens'.",
        "text": "send 'response_format'.",
        "output_config": "send 'response_format'.",
        "output_format": "send 'response_format'.",
        "format": "send 'response_format'.",
        "thinking_token_budget": PARSES_NO_REASONING,
    },
    COMPLETIONS: {
        "thinking_token_budget": PARSES_NO_REASONING,
        "format": "send 'response_format'.",
        "messages": "send 'prompt', or the request to /v1/chat/completions.",
        "max_completion_tokens": "send 'max_tokens'.",
        "max_output_tokens": "send 'max_tokens'.",
    },
    RESPONSES: {
        "messages": "send 'input'.",
        "max_tokens": "send 'max_output_tokens'.",
        "max_completion_tokens": "send 'max_output_tokens'.",
        "response_format": "send 'text': {\"format\": ...}.",
    },
    MESSAGES: {
        "stop": "send 'stop_sequences'.",
        "max_completion_tokens": "send 'max_tokens'.",
        "max_output_tokens": "send 'max_tokens'.",
        "response_format": "send 'output_config': {\"format\": ...}.",
        "output_format": "send 'output_config' alone.",
    },
}
"""Replacements for fields of another dialect, by path."""


def names(path: str) -> frozenset[str]:
    """Return the fields that would change an answer but that this path does not support."""
    return frozenset(INSTEAD) | INSTEAD_AT.get(path, {}).keys()


def advice(path: str, name: str) -> str:
    """Return what to send instead of the field `name`."""
    return INSTEAD_AT.get(path, {}).get(name) or INSTEAD.get(name, "leave it out.")
