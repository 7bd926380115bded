"""Find tokens that a model's tokenizer has and its network lacks.

Some fine-tunes come so: a <pad> was added to the tokenizer, and no row to the embeddings. Whoever writes it into a text
would end the engine for all: the network looks behind the end of a table.
"""

from collections.abc import Sequence

from registry.errors import BadRequest


def check_known(ids: Sequence[int], known: int, word: str = "") -> None:
    """Raise BadRequest for a token from `known` on. word: the largest, as written."""
    if ids and (largest := max(ids)) >= known:
        named = f"'{word}' ({largest})" if word else f"{largest}"
        raise BadRequest(
            f"Token {named} is in this model's tokenizer, but its network has {known} tokens, up to {known - 1}: leave "
            "it out of the text, or of the chat template."
        )
