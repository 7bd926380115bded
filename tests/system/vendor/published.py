"""Types of answers that no Python package of the vendor has.

Jina: from descriptions of its API by others, because its own document was not available. Text Embeddings Inference:
`Rank`, `EmbedResponse` and `ErrorResponse` of docs/openapi.json in its repository; a rank's `text` may be null there,
and we leave it out. OpenAI: its package has the error, but not the body around it.
"""

from typing import Literal, NotRequired

from openai.types.shared import ErrorObject
from typing_extensions import TypedDict


class OpenAIError(TypedDict):
    error: ErrorObject


class JinaText(TypedDict):
    text: str


class JinaResult(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[JinaText]


class JinaUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class JinaRanking(TypedDict):
    id: NotRequired[str]
    """Ours, and Cohere v1's on the same path."""
    model: str
    object: Literal["list"]
    usage: JinaUsage
    results: list[JinaResult]


class JinaError(OpenAIError):
    """`error` is for vLLM's clients on the same path."""

    detail: str


class TeiRank(TypedDict):
    index: int
    score: float
    text: NotRequired[str]


class TeiError(TypedDict):
    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer"]


class CohereError(TypedDict):
    message: str
