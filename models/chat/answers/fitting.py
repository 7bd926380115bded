"""Fit an answer to its path's vendor, and to the client's name of the model."""

import json
import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from models.chat.answers.completions import add_tier, fit_completion, name_reasoning
from models.chat.answers.messages import fit_message
from models.chat.answers.responses import fit_response
from models.chat.answers.shapes import NOTHING, Fault, Overrides
from models.chat.requests.request import CHAT, COMPLETIONS, MESSAGES, RESPONSES

ANTHROPICS = {"priority": b"priority", "default": b"standard", "flex": b"batch"}


class Renamer:
    """A filter that replaces the engine's `served` by `display_name`."""

    def __init__(self, served: str, display_name: str) -> None:
        self._pattern = re.compile(rb'("model"\s*:\s*)' + re.escape(json.dumps(served, ensure_ascii=False).encode()))
        self._display_name = json.dumps(display_name, ensure_ascii=False).encode()
        self._same = served == display_name
        self.overrides: Mapping[str, Raw] = {} if self._same else {"model": Raw(self._display_name)}
        """Overrides for answers with objects from clients and models, which may have a `model` of their own."""

    def __call__(self, data: bytes) -> bytes:
        """Rename in `data`, which contains only complete `"model":"..."` pairs.

        Objects from clients and models occur there only inside strings, where the quotes of such a pair are escaped.
        """
        if self._same:
            return data
        return self._pattern.sub(lambda match: match.group(1) + self._display_name, data)


def tier_override(path: str, tier: str) -> Mapping[str, Raw]:
    """Return the service class in the form of Messages and Responses; empty if none is reported."""
    word = ANTHROPICS.get(tier, b"") if path == MESSAGES else tier.encode()
    return {"service_tier": Raw(b'"' + word + b'"')} if word else {}


_FIELDS = {MESSAGES: fit_message, RESPONSES: fit_response}
"""Answers that contain objects from clients and models, so that overrides apply field by field."""
_PAIRS = {CHAT: fit_completion, COMPLETIONS: fit_completion}
_SAME = Renamer("", "")


def fit_answer(
    path: str,
    data: bytes,
    tier: str = "",
    rename: Renamer = _SAME,
    fault: Fault = lambda: None,
    echoed: Overrides = NOTHING,
    request_id: str = "",
    reasoning_field: str = "reasoning",
) -> bytes:
    """Fit `data`, a complete answer or complete events of a stream, to this path's vendor.

    Args:
        tier: the service class to report; '' for none.
        rename: inserts the client's name of the model.
        fault: explains why a stream broke.
        echoed: the request's fields that the answer repeats (`echo`).
        request_id: the id in an error in a stream of Messages; null if ''.
        reasoning_field: where an answer of Chat Completions has its reasoning (`name_reasoning`).
    """
    if (by_fields := _FIELDS.get(path)) is not None:
        named = {"request_id": Raw(msgspec.json.encode(request_id))} if request_id else {}
        return by_fields(data, {**echoed, **rename.overrides, **tier_override(path, tier), **named}, fault)
    if (by_pairs := _PAIRS.get(path)) is not None:
        data = name_reasoning(by_pairs(data, fault), reasoning_field)
    return rename(add_tier(data, tier) if tier and path == CHAT else data)
