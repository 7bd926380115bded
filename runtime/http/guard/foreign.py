"""Paths of other servers: the equivalent here, or that there is none."""

from collections.abc import Mapping
from pathlib import PurePosixPath

_KEYS = "Keys and teams are below /v1/organization/projects, and in 'roundhouse keys' and 'roundhouse teams'."
_USAGE = "What was used is at /v1/usage, and in 'roundhouse usage'."
_MODELS = "What is served is at /v1/models."
_SCORES = "Vectors are at /v1/embeddings, and scores of pairs of texts at /score."
_NOTHING = "No model here makes sound or pictures."
_STATE = "What is in memory is at /v1/status."
_ADD = "Models are added by POST /v1/models, or 'roundhouse models add'."
_REMOVE = "A model is removed by DELETE /v1/models/{model}."
_UNLOAD = "A model is unloaded by POST /v1/models/{model}/unload."
_LIVE, _READY = "It is at /health/live.", "It is at /health/ready."
ADVICE: Mapping[str, str] = {
    # Ollama
    "/api/create": "Add a model with /api/pull or 'roundhouse models add', and an adapter with /v1/adapters. What a "
    "Modelfile sets goes into the model's recipe.",
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
    "/invocations": "Use the path of the call itself, such as /v1/chat/completions.",
    "/is_sleeping": _STATE,
    "/load": "Running and waiting requests are at /metrics.",
    "/reset_prefix_cache": _UNLOAD,
    "/server_info": "Versions are at /version, and what is in memory at /v1/status.",
    "/sleep": "A model sleeps when another needs its room. " + _UNLOAD,
    "/wake_up": "A model is loaded, or woken, by POST /v1/models/{model}/load.",
    # SGLang, llama.cpp's server, whisper.cpp's
    "/completion": "It is at /v1/completions.",
    "/flush_cache": _UNLOAD,
    "/get_model_info": _MODELS,
    "/get_server_info": _STATE,
    "/inference": "Recordings are transcribed at /v1/audio/transcriptions.",
    "/infill": "No model here writes text between two others.",
    "/lora-adapters": "Adapters are at /v1/adapters.",
    "/props": _MODELS,
    "/slots": _STATE,
    # LocalAI
    "/healthz": _LIVE,
    "/readyz": _READY,
    "/backend/monitor": _STATE,
    "/backend/shutdown": _UNLOAD,
    "/models/apply": _ADD,
    "/models/available": _MODELS,
    "/models/delete": _REMOVE,
    "/models/galleries": _ADD,
    "/models/jobs": "The progress of a download is at /v1/models/{model}.",
    "/models/reload": "Recipes are read again by POST /v1/recipes/reload.",
    "/system": _STATE,
    "/tts": _NOTHING,
    "/v1/sound-generation": _NOTHING,
    "/v1/text-to-speech": _NOTHING,
    "/video": _NOTHING,
    # Xinference
    "/v1/cluster": _STATE,
    "/v1/engines": _ADD,
    "/v1/model_registrations": _ADD,
    "/v1/ui": "The console is at /.",
    "/v1/video": _NOTHING,
    "/v1/workers": _STATE,
    # LiteLLM's proxy
    "/budget": "Budgets are limits of money: 'roundhouse limits set'.",
    "/key": _KEYS,
    "/team": _KEYS,
    "/customer": _KEYS,
    "/user": _KEYS,
    "/spend": _USAGE,
    "/global/spend": _USAGE,
    "/model/info": _MODELS,
    "/v1/model/info": _MODELS,
    "/model/delete": _REMOVE,
    "/model/new": _ADD,
    "/model_group/info": _MODELS,
    "/ui": "The console is at /.",
    "/utils/token_counter": "It is at /tokenize.",
    "/health/liveliness": _LIVE,
    "/health/liveness": _LIVE,
    "/health/readiness": _READY,
    # OpenAI, Azure, Anthropic, Cohere
    "/openai/deployments": "Use OpenAI's client in place of Azure's, with an address that ends in /v1.",
    "/v1/audio/speech": _NOTHING,
    "/v1/images": _NOTHING,
    "/v1/realtime": "Recordings are transcribed at /v1/audio/transcriptions, in a stream with `stream`.",
    "/v1/conversations": "Send the whole conversation to /v1/responses.",
    "/v1/responses/compact": "Have a model summarise the conversation, and send that as the input of /v1/responses.",
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
