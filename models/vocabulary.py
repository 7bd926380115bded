"""Find tokens that a model's tokenizer has and its network lacks.

Some fine-tunes add a <pad> to the tokenizer without a row in the embeddings. A text that contains it would crash the
engine for all requests, because the network would read beyond the end of a table.
"""

from collections.abc import Sequence

from registry.errors import BadRequest


def check_known(ids: Sequence[int], known: int, word: str) -> None:
    """Raise BadRequest if an id is not below `known`. word: the largest token as text."""
    if ids and (largest := max(ids)) >= known:
        named = f"'{word}' ({largest})" if word else f"{largest}"
        raise BadRequest(
            f"Token {named} is in this model's tokenizer, but its network has {known} tokens, up to {known - 1}: leave "
            "it out of the text, or of the chat template."
        )
