"""vLLM's answers as the vendors' specifications have them: nothing is null that may not be, and nothing is missing."""

from models.chat.schemas import completions, messages, responses

_WAYS = {
    "/v1/chat/completions": completions.fitted,
    "/v1/completions": completions.fitted,
    "/v1/messages": messages.fitted,
    "/v1/responses": responses.fitted,
}


def fitted(path: str, data: bytes) -> bytes:
    """`data`, a whole answer or whole events of a stream, as this path's vendor has it."""
    way = _WAYS.get(path)
    return data if way is None else way(data)
