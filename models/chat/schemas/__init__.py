"""vLLM's answers as the vendors' specifications have them: nothing is null that may not be, and nothing is missing."""

from models.chat.schemas import completions, messages, responses, tiers

_WAYS = {
    "/v1/chat/completions": completions.fitted,
    "/v1/completions": completions.fitted,
    "/v1/messages": messages.fitted,
    "/v1/responses": responses.fitted,
}


def fitted(path: str, data: bytes, tier: str = "") -> bytes:
    """`data`, a whole answer or whole events of a stream, as this path's vendor has it. tier: told in it."""
    way = _WAYS.get(path)
    data = data if way is None else way(data)
    return tiers.told(path, data, tier) if tier else data
