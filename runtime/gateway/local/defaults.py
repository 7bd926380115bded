"""What a recipe adds to a request that does not say it itself: a system message and stop sequences."""

from collections.abc import Mapping
from typing import Any

from registry.recipes.definition import Recipe

SYSTEM_ROLES = ("system", "developer")
STOP_FIELDS: Mapping[str, str] = {
    "/v1/chat/completions": "stop",
    "/v1/completions": "stop",
    "/v1/responses": "stop",
    "/v1/messages": "stop_sequences",
}
"""The field for stop sequences on each path that generates text."""


def defaults(recipe: Recipe, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat body that the recipe adds or extends.

    A system message of the client's own, even an empty one, replaces the recipe's; so does a list of stop sequences.
    A body of the wrong shape is left to the engine, which refuses it.
    """
    added: dict[str, Any] = {}
    if recipe.system:
        added |= _system(recipe.system, path, body)
    if recipe.stop and (name := STOP_FIELDS.get(path)) and body.get(name) is None:
        added[name] = list(recipe.stop)
    return added


def _system(text: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    match path:
        case "/v1/messages" | "/v1/messages/count_tokens":
            own = body.get("system") is not None or _has_system(body.get("messages"))
            return {} if own else {"system": text}
        case "/v1/responses" | "/v1/responses/input_tokens":
            # not as `instructions`, which the answer repeats
            turns = body.get("input")
            if isinstance(turns, str):
                turns = [{"role": "user", "content": turns}]
            return {} if body.get("instructions") is not None else _before("input", turns, text)
        case "/v1/chat/completions" | "/tokenize":
            return _before("messages", body.get("messages"), text)
        case _:  # a prompt without a chat template
            return {}


def _before(name: str, turns: object, text: str) -> dict[str, Any]:
    if not isinstance(turns, list) or _has_system(turns):
        return {}
    return {name: [{"role": "system", "content": text}, *turns]}


def _has_system(turns: object) -> bool:
    return isinstance(turns, list) and any(
        isinstance(turn, dict) and turn.get("role") in SYSTEM_ROLES for turn in turns
    )
