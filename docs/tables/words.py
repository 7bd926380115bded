"""Meanings of fields without a description of their own. `docs.generate` fails if one is missing or left over."""

RECIPE: dict[str, str] = {
    "id": "The model's name in requests: 1 to 128 letters, digits, `.`, `_`, `-`, `/`, `:`.",
    "task": "What the model does; it decides which endpoints take it.",
    "source": "Where the weights are.",
    "source.path": "A folder on this machine. A relative path starts at the recipe file's folder.",
    "source.package": "An installed Python package that carries the weights.",
    "source.inside": "The folder inside that package.",
    "source.hub": "A repository on a model hub.",
    "source.file": "One GGUF file of that repository, for chat; it is converted to bfloat16.",
    "source.revision": "Its revision: a commit, or a tag or branch, which is resolved to one.",
    "engine.name": "The library that runs it: `vllm` for chat, `sentence-transformers` for embed and rerank, "
    "`faster-whisper` for transcribe.",
    "engine.flags": "The engine's own flags by their own names, such as `tool_call_parser` of `vllm serve`. Flags with "
    "their own key in a recipe, and flags that would break the server's control of a slot, are refused.",
    "dtype": "Number format of the computation. auto: the engine's choice, but float32 for small chat models on CPUs "
    "that emulate bfloat16, and on a GPU float16 for speech, and for embedding and rerank models stored in float32 "
    "whose answers it does not change.",
    "context_length": "Longest input in tokens (chat: including the answer). None: the model's own limit.",
    "memory.kv_cache": "Bytes for the KV cache of a chat model. None: room for 8 full contexts, at most 4 GiB.",
    "memory.adapters.device": "LoRA adapters that can answer in one batch. 0: the model takes no adapters.",
    "memory.adapters.host": "Adapters kept ready in host memory, including those in places.",
    "memory.adapters.max_rank": "Largest rank that fits into a place.",
    "memory.adapters.on_demand": "Requests may name adapters by a hub's id or an address, which registers them.",
    "memory.adapters.arena": "On a GPU: stage adapters in one piece of pinned memory, in blocks of `max_rank`, instead "
    "of separate blocks whose size is a power of two. Not yet tried on a GPU.",
    "batching.max_requests": "Requests (chat: sequences) in one step of the engine.",
    "batching.max_tokens": "Tokens in one step of the engine; for speech, seconds of its windows, including padding.",
    "queue.max_waiting": "Requests that may wait for this model. More are refused with 429.",
    "queue.max_wait": "Longest wait of a request, which then gets a 503.",
    "residency.pin": "Never evict the model. `PUT`/`DELETE /v1/models/{id}/pin` overrides this and is remembered.",
    "residency.drain_deadline": "How long running requests may continue when the model leaves. Then they end with an "
    "error event.",
    "residency.preload": "Load at start.",
    "aliases": "Further names of the model.",
    "adapters": "Adapters to register at start if their name does not exist yet.",
    "adapters[].name": "1 to 64 letters, digits, `.`, `_`, `-`.",
    "adapters[].source": "As `source` of the model.",
    "adapters[].pin": "Keep it in its place.",
    "expected.load_seconds": "Expected seconds of a load, until one has been measured.",
    "expected.resident": "Bytes of the loaded model on the machine where the recipe was measured.",
    "expected.tokens_per_second": "Output tokens a second on that machine.",
    "expected.note": "Which machine, and how it was measured.",
    "description": "Shown by `GET /v1/models`.",
    "owned_by": "Shown by `GET /v1/models`.",
}
"""Recipe key to meaning."""
PROVIDER: dict[str, str] = {
    "id": "The prefix of its models' names.",
    "protocol": "Whose API it speaks.",
    "models": "Its models.",
    "models[].aliases": "Further names here.",
    "models[].task": "What the model does.",
    "models[].context_length": "Context length in tokens (default: 32,768), whose price limits reserve.",
    "models[].abilities": "What its requests may contain besides text.",
    "models[].description": "Shown in lists.",
    "description": "A note for readers.",
}
