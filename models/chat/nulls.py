"""Fields that OpenAI's specification lets be left out, but not be null: vLLM writes them as null where it has nothing.

Only for answers that hold no JSON of a client's: there a pair like these, with quotes that are not escaped, is vLLM's.
"""

import re

PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
NAMES = ("annotations", "completion_tokens_details", "function_call", "prompt_tokens_details", "service_tier")
_PAIR = re.compile(rb',"(?:' + "|".join(NAMES).encode() + rb')":null')


def without(path: str, data: bytes) -> bytes:
    """An answer, or whole events of one, without these."""
    return _PAIR.sub(b"", data) if path in PATHS else data
