"""Meanings of fields whose own module does not give them. `docs.generate` fails when one is missing or left over."""

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
    "engine.flags": "The engine's own flags by their own names, such as `tool_call_parser` of `vllm serve`. Flags that "
    "a recipe has words for, and flags that would take a slot out of our hands, are refused.",
    "dtype": "Number format to compute in. auto: the engine's choice; float32 for small chat models on CPUs that "
    "emulate bfloat16; on a GPU float16 for speech, and for embedding and rerank models stored in float32 that it "
    "suits.",
    "context_length": "Longest input in tokens (chat: with the answer). None: what the model was made for.",
    "memory.kv_cache": "Bytes for the KV cache of a chat model. None: room for 8 full contexts, at most 4 GiB.",
    "memory.adapters.device": "LoRA adapters that can answer in one batch. 0: the model takes no adapters.",
    "memory.adapters.host": "Adapters kept ready in host memory, those in places included.",
    "memory.adapters.max_rank": "Largest rank that fits into a place.",
    "memory.adapters.on_demand": "Requests may name adapters by a hub's id or an address, which registers them.",
    "memory.adapters.arena": "On a GPU: stage adapters in one piece of pinned memory, in blocks of `max_rank`, instead "
    "of a block of a power of two for each. Not yet tried on a GPU.",
    "batching.max_requests": "Requests (chat: sequences) in one step of the engine.",
    "batching.max_tokens": "Tokens in one step of the engine; for speech, seconds of its windows, padding included.",
    "queue.max_waiting": "Requests that may wait for this model. One more is a 429.",
    "queue.max_wait": "Longest wait of a request. Then it is a 503.",
    "residency.pin": "Never evicted. `PUT`/`DELETE /v1/models/{id}/pin` overrides it and is remembered.",
    "residency.drain_deadline": "Running requests may go on for so long when the model leaves. Then they end with an "
    "error event.",
    "residency.preload": "Load at start.",
    "aliases": "Further names of the model.",
    "adapters": "Adapters that are registered at start if their name is not there yet.",
    "adapters[].name": "1 to 64 letters, digits, `.`, `_`, `-`.",
    "adapters[].source": "As `source` of the model.",
    "adapters[].pin": "Keep it in its place.",
    "expected.load_seconds": "Expected seconds of a load, until one was measured.",
    "expected.resident": "Bytes that the loaded model held where the recipe was measured.",
    "expected.tokens_per_second": "Output tokens a second where the recipe was measured.",
    "expected.note": "On which machine, and how.",
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
    "models[].context_length": "Tokens that it reads. Limits reserve the price of so many, 32,768 if left out.",
    "models[].abilities": "What requests it takes besides text.",
    "models[].description": "Shown in lists.",
    "description": "A note for readers.",
}
