"""Paths of other servers: the equivalent here, or that there is none."""

from collections.abc import Mapping
from pathlib import PurePosixPath

_KEYS = "Keys and teams are below /v1/organization/projects, and in 'roundhouse keys' and 'roundhouse teams'."
_BUDGETS = "Budgets are limits of money: 'roundhouse limits set'."
_USAGE = "What was used is at /v1/usage, and in 'roundhouse usage'."
_MODELS = "What is served is at /v1/models."
_SCORES = "Vectors are at /v1/embeddings, and scores of pairs of texts at /score."
_NOTHING = "No model here makes sound or pictures."
_VECTORS = "Vectors of texts are at /v1/embeddings."
_RECORDINGS = "Recordings are transcribed at /v1/audio/transcriptions."
_TOKENS, _TEXTS = "It is at /tokenize.", "It is at /detokenize."
_TEMPLATE = "The tokens of a conversation are at /tokenize, with `messages`."
_STATE = "What is in memory is at /v1/status."
_RUNNING = "Running and waiting requests are at /metrics."
_ADD = "Models are added by POST /v1/models, or 'roundhouse models add'."
_REMOVE = "A model is removed by DELETE /v1/models/{model}."
_EDIT = "A model's recipe is changed by PATCH /v1/models/{model}, or 'roundhouse models edit'."
_LOAD = "A model is loaded, or woken, by POST /v1/models/{model}/load."
_UNLOAD = "A model is unloaded by POST /v1/models/{model}/unload."
_CALL = "Use the path of the call itself, such as /v1/chat/completions."
_WHOLE = "Send the whole conversation to /v1/responses."
_CLOUD = "Ollama's cloud is not used from here."
_LIVE, _READY = "It is at /health/live.", "It is at /health/ready."
ADVICE: Mapping[str, str] = {
    # Ollama
    "/api/create": "Add a model with /api/pull or 'roundhouse models add', and an adapter with /v1/adapters. What a "
    "Modelfile sets goes into the model's recipe.",
    "/api/blobs": "Upload an adapter to /v1/adapters; a model is added by /api/pull or 'roundhouse models add'.",
    "/api/copy": "Another name for a model is an alias: PUT /v1/models/{model}/aliases/{alias}.",
    "/api/push": "Nothing is sent to a registry from here.",
    "/api/experimental": _CLOUD,
    "/api/me": _CLOUD,
    "/api/signout": _CLOUD,
    "/api/web_fetch": _CLOUD,
    "/api/web_search": _CLOUD,
    # vLLM, Text Embeddings Inference, Text Generation Inference
    "/classify": _SCORES,
    "/embed_all": _SCORES,
    "/embed_sparse": _SCORES,
    "/generative_scoring": _SCORES,
    "/pooling": _SCORES,
    "/predict": _SCORES,
    "/predict_tokens": _SCORES,
    "/similarity": _SCORES,
    "/v1/classify": _SCORES,
    "/chat_tokenize": _TEMPLATE,
    "/decode": _TEXTS,
    "/inference/v1/generate": "Token ids are taken by /v1/completions, as `prompt`.",
    "/info": _MODELS,
    "/invocations": _CALL,
    "/is_sleeping": _STATE,
    "/load": _RUNNING,
    "/reset_encoder_cache": _UNLOAD,
    "/reset_mm_cache": _UNLOAD,
    "/reset_prefix_cache": _UNLOAD,
    "/server_info": "Versions are at /version, and what is in memory at /v1/status.",
    "/sleep": "A model sleeps when another needs its room. " + _UNLOAD,
    "/tokenizer_info": _TOKENS,
    "/v1/chat/completions/batch": "Many requests at a time are a batch: POST /v1/batches.",
    "/v1/chat/completions/render": _TEMPLATE,
    "/v1/completions/render": _TOKENS,
    "/vertex": _CALL,
    "/wake_up": _LOAD,
    # SGLang, llama.cpp's server and llama-swap, whisper.cpp's server
    "/abort_request": "Close the connection: that ends the request.",
    "/apply-template": _TEMPLATE,
    "/close_session": _WHOLE,
    "/completion": "It is at /v1/completions.",
    "/embedding": "It is at /v1/embeddings.",
    "/encode": _VECTORS,
    "/flush_cache": _UNLOAD,
    "/get_load": _RUNNING,
    "/get_model_info": _MODELS,
    "/get_server_info": _STATE,
    "/health_generate": _READY,
    "/inference": _RECORDINGS,
    "/infill": "No model here writes text between two others.",
    "/load_lora_adapter_from_tensors": "Upload an adapter's files to /v1/adapters.",
    "/lora-adapters": "Adapters are at /v1/adapters.",
    "/model_info": _MODELS,
    "/models/load": _LOAD,
    "/models/unload": _UNLOAD,
    "/open_session": _WHOLE,
    "/props": _MODELS,
    "/release_memory_occupation": _UNLOAD,
    "/reranking": "It is at /v1/rerank.",
    "/resume_memory_occupation": _LOAD,
    "/running": _STATE,
    "/slots": _STATE,
    "/unload": _UNLOAD,
    "/update_weights_from_disk": _ADD,
    "/v1/loads": _RUNNING,
    "/v1/reranking": "It is at /v1/rerank.",
    # faster-whisper-server, Speaches and whisper-asr-webservice
    "/asr": _RECORDINGS,
    "/detect-language": f"{_RECORDINGS} `verbose_json` tells the language.",
    "/api/ps/": f"{_LOAD} {_UNLOAD}",
    "/api/pull/": _ADD,
    "/v1/audio/models": _MODELS,
    "/v1/audio/voices": _NOTHING,
    "/v1/registry": _ADD,
    # Infinity
    "/embeddings_audio": _VECTORS,
    "/embeddings_image": _VECTORS,
    # LocalAI
    "/healthz": _LIVE,
    "/readyz": _READY,
    "/backend/monitor": _STATE,
    "/backend/shutdown": _UNLOAD,
    "/models/apply": _ADD,
    "/models/available": _MODELS,
    "/models/delete": _REMOVE,
    "/models/edit": _EDIT,
    "/models/galleries": _ADD,
    "/models/import": _ADD,
    "/models/jobs": "The progress of a download is at /v1/models/{model}.",
    "/models/reload": "Recipes are read again by POST /v1/recipes/reload.",
    "/system": _STATE,
    "/tts": _NOTHING,
    "/v1/sound-generation": _NOTHING,
    "/v1/text-to-speech": _NOTHING,
    "/video": _NOTHING,
    # Xinference
    "/v1/address": _STATE,
    "/v1/cluster": _STATE,
    "/v1/convert_ids_to_tokens": _TEXTS,
    "/v1/engines": _ADD,
    "/v1/model_registrations": _ADD,
    "/v1/ui": "The console is at /.",
    "/v1/video": _NOTHING,
    "/v1/workers": _STATE,
    # LiteLLM's proxy
    "/budget": _BUDGETS,
    "/provider/budgets": _BUDGETS,
    "/cache": "Answers are not cached.",
    "/credentials": "A provider's key is in the environment of the server: PUT /v1/providers/{provider} names it.",
    "/end_user": _KEYS,
    "/key": _KEYS,
    "/organization": _KEYS,
    "/tag": "Tags are not counted: a key for each shows what was used, at /v1/usage.",
    "/team": _KEYS,
    "/customer": _KEYS,
    "/user": _KEYS,
    "/spend": _USAGE,
    "/global/activity": _USAGE,
    "/global/spend": _USAGE,
    "/model/info": _MODELS,
    "/v1/model/info": _MODELS,
    "/v2/model/info": _MODELS,
    "/model/delete": _REMOVE,
    "/model/metrics": _RUNNING,
    "/model/new": _ADD,
    "/model/update": _EDIT,
    "/model_group/info": _MODELS,
    "/ui": "The console is at /.",
    "/utils/token_counter": "It is at /tokenize.",
    "/health/liveliness": _LIVE,
    "/health/liveness": _LIVE,
    "/health/readiness": _READY,
    # KServe, Triton, NIM
    "/v2/health/live": _LIVE,
    "/v2/health/ready": _READY,
    "/v2/models": f"{_CALL} {_MODELS}",
    "/v2/repository": f"{_LOAD} {_UNLOAD}",
    "/v1/manifest": _MODELS,
    "/v1/metadata": _MODELS,
    # LM Studio, text-generation-webui, TabbyAPI
    "/api/v0": _CALL,
    "/api/v1/models/load": _LOAD,
    "/v1/internal": f"{_MODELS} The tokens of a text are at /tokenize.",
    "/v1/lora": "Adapters are at /v1/adapters.",
    "/v1/model/load": _LOAD,
    "/v1/token": f"{_TOKENS} Back to text: /detokenize.",
    # OpenAI, Azure, Anthropic, Cohere, Google
    "/openai/deployments": "Use OpenAI's client in place of Azure's, with an address that ends in /v1.",
    "/v1/assistants": _WHOLE,
    "/v1/threads": _WHOLE,
    "/edits": "Send what to change as a message to /v1/chat/completions.",
    "/v1/edits": "Send what to change as a message to /v1/chat/completions.",
    "/moderations": "No model here judges texts by rules of their own: ask one, at /v1/chat/completions.",
    "/v1/moderations": "No model here judges texts by rules of their own: ask one, at /v1/chat/completions.",
    "/v1/fine_tuning": "Nothing is trained here: register an adapter that was trained elsewhere, with /v1/adapters.",
    "/v1/uploads": "A file is sent in one piece, to /v1/files.",
    "/v1/vector_stores": f"Nothing is searched here. {_VECTORS}",
    "/v1/videos": _NOTHING,
    "/v1beta": "Use OpenAI's client in place of Google's, with an address that ends in /v1.",
    "/v1/summarize": "Ask a model for a summary, at /v2/chat.",
    "/v1/audio/speech": _NOTHING,
    "/v1/images": _NOTHING,
    "/v1/realtime": "Recordings are transcribed at /v1/audio/transcriptions, in a stream with `stream`.",
    "/v1/conversations": _WHOLE,
    "/v1/responses/compact": "Have a model summarise the conversation, and send that as the input of /v1/responses.",
    "/v1/complete": "It is at /v1/messages.",
    "/v1/chat": "Cohere's second version is at /v2/chat, OpenAI's call at /v1/chat/completions.",
}
"""Advice by path, which also applies to the paths below it. With a slash at the end it applies only to those."""
_ALONE = ("/v1/chat", "/inference")
"""Paths whose advice does not apply to those below, which are misspellings of existing paths, or other calls."""


def advice(path: str) -> str | None:
    """What to do instead. None if no other server is known to have the path."""
    above = (parent for parent in map(str, PurePosixPath(path).parents) if parent not in _ALONE)
    names = (path, *(name for parent in above for name in (parent, f"{parent}/")))
    return next((ADVICE[name] for name in names if name in ADVICE), None)
