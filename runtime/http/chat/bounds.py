"""How large a body a model's context can have any use for: what is larger is refused before it is parsed.

A body of 4 MB is parsed in some 50 ms, up to 100 ms for the worst, during which no stream moves: a thread does not
help, since the parser holds Python's lock throughout. The engine then works on it for seconds.
"""

from collections.abc import Collection

from registry.errors import TooLarge
from registry.recipes.definition import Recipe

BYTES_PER_TOKEN = 64
"""Text has 3 to 5 bytes a token, six times that where JSON escapes each letter; only runs of blanks have more."""
LEAST = 1 << 20
"""Room for what is no prompt: schemas, tools, biases."""
SHORTENS = b'"truncate'
"""A client that has its prompt cut may send more than fits."""


def most_bytes(recipes: Collection[Recipe]) -> int | None:
    """For bodies that any of these models may be meant by; None: one of them does not state its context."""
    contexts = [recipe.context_length for recipe in recipes]
    known = [context for context in contexts if context is not None]
    if not known or len(known) < len(contexts):
        return None
    return max(LEAST, BYTES_PER_TOKEN * max(known))


def check_size(body: bytes, recipes: Collection[Recipe]) -> None:
    """Raises TooLarge. Before `model` is known: for all that it may name; then for the one."""
    most = most_bytes(recipes)
    if most is None or len(body) <= most or SHORTENS in body:
        return
    context = max(recipe.context_length or 0 for recipe in recipes)
    raise TooLarge(
        f"The body has {len(body)} bytes; a model with a context of {context} tokens takes at most {most} here. "
        "Send a shorter prompt, or fewer messages."
    )
