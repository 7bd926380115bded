"""Chat completions and completions: OpenAI's specification lets fields be left out that vLLM writes as null.

These answers hold no JSON of a client's: a pair like these, with quotes that are not escaped, is vLLM's.
"""

import re

from models.chat.schemas import errors

NAMES = ("annotations", "completion_tokens_details", "function_call", "prompt_tokens_details", "service_tier")
PIECES = ("id", "name", "type")
"""Of a call in a stream, that only its first piece has."""
OWN = (
    "ec_transfer_params",
    "kv_transfer_params",
    "metrics",
    "prompt_logprobs",
    "prompt_text",
    "prompt_token_ids",
    "routed_experts",
    "token_ids",
)
"""vLLM's own, for those who ask for them."""
_NULL = b'"(?:' + "|".join((*NAMES, *PIECES, *OWN)).encode() + b')":null'
_PAIRS = re.compile(b"," + _NULL + rb"|(?<=\{)(?:" + _NULL + b",?)+")
_LOGPROBS = b'"logprobs":{"content":'


def fitted(data: bytes, fault: errors.Fault) -> bytes:
    """Without these nulls; where there are logprobs, those of a refusal are null, as always with vLLM."""
    return errors.fitted(_PAIRS.sub(b"", data), fault).replace(_LOGPROBS, b'"logprobs":{"refusal":null,"content":')
