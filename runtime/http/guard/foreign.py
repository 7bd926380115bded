"""Paths of other servers: the equivalent here, or that there is none."""

from collections.abc import Mapping
from pathlib import PurePosixPath

_KEYS = "Keys and teams are below /v1/organization/projects, and in 'roundhouse keys' and 'roundhouse teams'."
_USAGE = "What was used is at /v1/usage, and in 'roundhouse usage'."
_MODELS = "What is served is at /v1/models."
_SCORES = "Vectors are at /v1/embeddings, and scores of pairs of texts at /score."
_NOTHING = "No model here makes sound or pictures."
_LIVE, _READY = "It is at /health/live.", "It is at /health/ready."
ADVICE: Mapping[str, str] = {
    # Ollama
    "/api/create": "Add a model with /api/pull or 'roundhouse models add', and an adapter with /v1/adapters.",
    "/api/blobs": "Upload an adapter to /v1/adapters; a model is added by /api/pull or 'roundhouse models add'.",
    "/api/copy": "Another name for a model is an alias: PUT /v1/models/{model}/aliases/{alias}.",
    "/api/push": "Nothing is sent to a registry from here.",
    # vLLM, Text Embeddings Inference, Text Generation Inference
    "/classify": _SCORES,
    "/embed_all": _SCORES,
    "/embed_sparse": _SCORES,
    "/pooling": _SCORES,
    "/predict": _SCORES,
    "/similarity": _SCORES,
    "/chat_tokenize": "It is at /tokenize, with `messages`.",
    "/info": _MODELS,
    # LocalAI
    "/healthz": _LIVE,
    "/readyz": _READY,
    "/models/apply": "Models are added by POST /v1/models, or 'roundhouse models add'.",
    "/models/available": _MODELS,
    # LiteLLM's proxy
    "/budget": "Budgets are limits of money: 'roundhouse limits set'.",
    "/key": _KEYS,
    "/team": _KEYS,
    "/user": _KEYS,
    "/spend": _USAGE,
    "/global/spend": _USAGE,
    "/model/info": _MODELS,
    "/v1/model/info": _MODELS,
    "/model/new": "Models are added by POST /v1/models, or 'roundhouse models add'.",
    "/health/liveliness": _LIVE,
    "/health/liveness": _LIVE,
    "/health/readiness": _READY,
    # OpenAI, Azure, Anthropic, Cohere
    "/openai/deployments": "Use OpenAI's client in place of Azure's, with an address that ends in /v1.",
    "/v1/audio/speech": _NOTHING,
    "/v1/images": _NOTHING,
    "/v1/realtime": "Recordings are transcribed at /v1/audio/transcriptions, in a stream with `stream`.",
    "/v1/conversations": "Send the whole conversation to /v1/responses.",
    "/v1/complete": "It is at /v1/messages.",
    "/v1/chat": "Cohere's second version is at /v2/chat, OpenAI's call at /v1/chat/completions.",
}
"""Advice by path, which also applies to the paths below it."""
_ALONE = "/v1/chat"
"""A path whose advice does not apply to those below, which may be misspellings of existing paths."""


def advice(path: str) -> str | None:
    """What to do instead. None if no other server is known to have the path."""
    above = (parent for parent in map(str, PurePosixPath(path).parents) if parent != _ALONE)
    return next((ADVICE[one] for one in (path, *above) if one in ADVICE), None)
