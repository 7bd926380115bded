"""How large a body a model's context can have any use for: what is larger does not reach the engine.

An engine works for seconds on 100,000 messages before it refuses them, and its other streams stand still.
"""

from registry.errors import TooLarge

BYTES_PER_TOKEN = 64
"""Text has 3 to 5 bytes a token, six times that where JSON escapes each letter; only runs of blanks have more."""
LEAST = 1 << 20
"""Room for what is no prompt: schemas, tools, biases."""


def most_bytes(context_length: int) -> int:
    return max(LEAST, BYTES_PER_TOKEN * context_length)


def check_size(size: int, context_length: int | None) -> None:
    """Raises TooLarge. None: the context is not known."""
    if context_length is not None and size > (most := most_bytes(context_length)):
        raise TooLarge(
            f"The body has {size} bytes; a model with a context of {context_length} tokens takes at most {most} here. "
            "Send a shorter prompt, or fewer messages."
        )
