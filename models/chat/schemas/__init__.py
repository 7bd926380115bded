"""vLLM's answers as the vendors' specifications have them: nothing is null that may not be, and nothing is missing."""

from models.chat.names import Renamer
from models.chat.schemas import completions, messages, responses, tiers
from models.chat.schemas.errors import Fault

_FIELDS = {"/v1/messages": messages.fitted, "/v1/responses": responses.fitted}
"""Their answers hold objects of clients and models, so what is told is put where it belongs, field by field."""
_PAIRS = {"/v1/chat/completions": completions.fitted, "/v1/completions": completions.fitted}
_SAME = Renamer("", "")


def fitted(path: str, data: bytes, tier: str = "", rename: Renamer = _SAME, fault: Fault = lambda: None) -> bytes:
    """`data`, a whole answer or whole events of a stream, as this path's vendor has it. tier: told in it. fault: told
    where a stream broke."""
    if (by_fields := _FIELDS.get(path)) is not None:
        return by_fields(data, {**rename.overrides, **tiers.overrides(path, tier)}, fault)
    if (by_pairs := _PAIRS.get(path)) is not None:
        data = by_pairs(data, fault)
    return rename(tiers.in_chat(data, tier) if tier and path == "/v1/chat/completions" else data)
