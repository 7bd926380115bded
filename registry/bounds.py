"""Upper bounds on one request, each with its reason.

A bound is a number that a client can reach. `--bounds NAME=VALUE` sets those in TUNABLE; `--bounds-factor` scales all
others. What the machine can do (memory, slots, times) is configured by settings instead.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from registry.byte_size import ByteSize

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNFIT, SOUND, ROUTER = "422 `unfit_adapter`", "400 `invalid_audio`", "422 `bad_router`"
TUNABLE = (
    "json_values", "messages", "media_bytes", "answers", "tools", "grammar_bytes", "choices", "properties",
    "enum_entries", "compile_seconds", "grammar_cache", "upload_seconds", "inputs", "documents", "unpacked_bytes",
    "adapter_bytes", "adapter_check_seconds", "adapter_download_seconds", "adapter_versions", "combine_seconds",
    "recipe_versions", "router_versions", "routers_bytes", "responses_bytes", "viewers",
)  # fmt: skip
"""Bounds that have an option of their own."""
UNSCALED = ("nesting", "sample_rate_least")
"""vLLM's own limit, and the one bound that is a minimum."""
TOO_LARGE, TOO_SLOW, ENTRIES = "400 `grammar_too_large`", "400 `grammar_too_slow`", "400 `too_many_entries`"


def _bound(default: float, what: str, over: str, why: str, most: float | None = None) -> Any:
    """what: what is counted. over: what happens beyond the bound. why: the reason for the default."""
    extra: dict[str, JsonValue] = {"over": over, "why": why}
    return Field(default, description=what, json_schema_extra=extra, gt=0, le=most)


class Bounds(BaseModel):
    """All bounds of one server. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def scaled(cls, factor: float, given: Mapping[str, object]) -> dict[str, object]:
        """Return values to validate: the given ones, and all other defaults times the factor."""
        values: dict[str, object] = {}
        for name, field in cls.model_fields.items():
            value = field.default if name in UNSCALED else field.default * factor
            values[name] = max(1, int(value)) if isinstance(field.default, int) else value
        return {**values, **given}

    body_bytes_per_token: int = _bound(
        64,
        "bytes of a body to a chat model, for each token of its context",
        "413",
        "text has 3 to 5 bytes per token, six times that if JSON escapes each letter; only runs of spaces have more",
    )
    body_bytes_least: ByteSize = _bound(
        MIB,
        "bytes that such a body may always have",
        "413",
        "schemas, tools and biases do not count as prompt",
    )
    json_values: int = _bound(
        65_536,
        "lists, objects and strings in any JSON body, counted while it arrives",
        "413",
        "4,096 messages with as many parts have 40,000; decoding 1.4 million stops all streams for 0.3 s",
    )
    text_bytes_per_token: int = _bound(
        16,
        "the same for `/tokenize` and `/detokenize`, and for prompts that may be truncated",
        "413",
        "vLLM takes 2 s for a prompt of 2 MB, partly on the event loop that feeds all streams",
    )
    text_bytes_least: ByteSize = _bound(64 * KIB, "bytes that those may always have", "413", "a page or two")
    messages: int = _bound(
        4096,
        "messages, or items of an input; also at most one for each token of the context",
        ENTRIES,
        "vLLM takes 65 us for each, on the event loop that feeds all streams",
    )
    messages_least: int = _bound(
        256, "messages that are always allowed", ENTRIES, "a small context holds few; vLLM's own error is clearer"
    )
    parts: int = _bound(
        256, "parts of one message's content", ENTRIES, "vLLM reports 34 faults of an invalid part, on that loop"
    )
    parts_all: int = _bound(4096, "parts of all contents", ENTRIES, "30 us each, on that loop")
    media_bytes: ByteSize = _bound(
        256 * MIB,
        "bytes of all images, sounds and videos of a request: of their files, and 3 per pixel of an image or of a "
        "frame that is read, 4 per sample of a sound",
        "400 `media_too_large`",
        "six large photos, 20 minutes of sound or 40 frames of 1920 x 1080; a file of 10 KB may hold as much, and an "
        "image takes four times as much as an input",
    )
    stops: int = _bound(64, "`stop`, `stop_sequences`", ENTRIES, "OpenAI takes 4; all output is searched for each")
    answers: int = _bound(
        1024,
        "answers of one request: prompts times `n`",
        ENTRIES,
        "vLLM's own bound on prompts; 300 times 128 took 12 s and enough memory to restart the engine",
    )
    entries: int = _bound(
        2048,
        "entries of other fields, such as `metadata`, `bad_words` and `chat_template_kwargs`",
        ENTRIES,
        "50,000 of the last stopped all streams for 0.5 s",
    )
    biases: int = _bound(2048, "`logit_bias` entries", ENTRIES, "300,000 stopped all streams for 0.4 s")
    repetition_pattern: int = _bound(
        64,
        "tokens of a pattern that `repetition_detection` searches for",
        "400 `invalid_value`",
        "vLLM searches after each token, in its step; with 4,000 an answer of 16,000 tokens took all others 1.5 s",
    )
    tools: int = _bound(128, "`tools`", ENTRIES, "OpenAI takes 128")
    prompt_logprobs: int = _bound(
        128,
        "`n` times `prompt_logprobs`, or `logprobs` with `echo`",
        ENTRIES,
        "vLLM computes and sends them for each answer",
    )
    logprobs: int = _bound(
        131_072,
        "`logprobs` or `top_logprobs` times answers times `max_tokens` (or the context), if not streamed",
        ENTRIES,
        "they are serialised in one piece on that loop; 1.2 million (128 answers, 20 for each of 480 tokens) blocked "
        "an engine until it was restarted",
    )
    request_id_letters: int = _bound(128, "letters of a `request_id`", "400 `invalid_value`", "it goes into logs")
    grammar_bytes: ByteSize = _bound(
        128 * KIB, "bytes of a schema or grammar", TOO_LARGE, "OpenAI takes schemas of 120,000 characters"
    )
    regex_bytes: ByteSize = _bound(
        16 * KIB, "bytes of its regular expressions", TOO_LARGE, "longer ones are better checked in your own code"
    )
    choices: int = _bound(
        2000,
        "choices",
        TOO_LARGE,
        "time grows with their square; 1,000 take 30 ms to compile, 10,000 take 1.1 s and 0.5 GB (xgrammar 0.2.8)",
    )
    properties: int = _bound(1000, "properties and definitions of a schema", TOO_LARGE, "usual ones have under 100")
    enum_entries: int = _bound(2000, "`enum` entries of a schema", TOO_LARGE, "OpenAI takes 1,000")
    nesting: int = _bound(
        64, "levels of nesting", TOO_LARGE, "vLLM's own bound, which it checks only after parsing", 64
    )
    repetitions: int = _bound(
        10_000, "repetitions of a part, as in `{10}`", TOO_LARGE, "each is a state of the compiled grammar"
    )
    references: int = _bound(
        64, "length of a chain of `$ref`s", "400 `invalid_grammar`", "longer ones are taken for a cycle"
    )
    compile_seconds: float = _bound(
        5.0,
        "seconds of CPU to compile a grammar with a vocabulary of 131,072; fewer with a smaller one, but at least 0.5",
        TOO_SLOW,
        "100 strings of bounded length take 2 s with a vocabulary of 130,000, 0.01 s with one of 320; grammars that "
        "take longer are too ambiguous, and following them costs more with every token",
    )
    compile_memory: ByteSize = _bound(
        256 * MIB, "memory for compiling, on top of the process itself", TOO_LARGE, "usual schemas take a few MiB"
    )
    compiled_bytes: ByteSize = _bound(
        16 * MIB, "size when compiled", TOO_LARGE, "usual ones have 0.03 to 1 MB; the engine keeps it per request"
    )
    grammar_check_seconds: float = _bound(
        20.0, "seconds that a check may take on a busy machine", "503 `grammar_check_busy`", "clients wait 60 and more"
    )
    walked_tokens: int = _bound(
        64, "tokens with which a grammar is tried out", TOO_SLOW, "an ambiguous one costs more with every token"
    )
    follow_seconds: float = _bound(
        0.1,
        "seconds of CPU to follow a grammar, on top of those for each token",
        f"{TOO_SLOW}, or later the end of its request",
        "each token of all requests would wait for it",
    )
    follow_token_seconds: float = _bound(
        0.003,
        "the same for each token",
        f"{TOO_SLOW}, or later the end of its request",
        "usual ones take 0.0002 s; 100 strings of bounded length take 0.025 at the worst token (vocabulary of 130,000)",
    )
    grammars_waiting: int = _bound(
        32,
        "grammars of a team that wait for their check at an engine; eight times as many of all teams",
        "429 `grammar_queue_full`",
        "as many as run in a usual batch",
    )
    verdict_cache: ByteSize = _bound(
        8 * MIB,
        "cached verdicts on grammars",
        "the oldest is dropped",
        "some 500 bytes each; more with the choices of one",
    )
    grammar_cache: ByteSize = _bound(
        64 * MIB,
        "compiled grammars that an engine caches",
        "the oldest is dropped",
        "usual ones have 0.03 to 1 MB; vLLM's own 512 MB made a small model's engine the machine's largest process",
    )
    pipelined: int = _bound(
        256,
        "requests that a connection sends before earlier ones are answered",
        "closed",
        "some 3 KB each; no client in use sends more than a few",
    )
    form_bytes: ByteSize = _bound(
        256 * KIB,
        "all fields of a form together, with the headers of all its parts",
        "413",
        "the longest field is a prompt",
    )
    form_parts: int = _bound(128, "parts of a form", "400 `invalid_form`", "no endpoint has more than 30 fields")
    upload_pause_seconds: float = _bound(
        30.0, "seconds without data during an upload", "408", "a pause in a mobile network"
    )
    upload_seconds: float = _bound(900.0, "seconds of an upload", "408", "2 GiB over 20 Mbit/s")
    inputs: int = _bound(2048, "inputs of one request for embeddings", "400 `too_many_inputs`", "OpenAI's own bound")
    documents: int = _bound(
        2048,
        "documents, or pairs, of one request to a reranker",
        "400 `too_many_documents`",
        "Cohere advises 1,000; each takes one or several runs of the model",
    )
    unpacked_bytes: ByteSize = _bound(
        4 * GIB,
        "unpacked size of an adapter's archive",
        UNFIT,
        "rank 128 on all layers of a model with 70 billion parameters has 3.3 GB",
    )
    unpacked_files: int = _bound(64, "members of an archive", UNFIT, "an adapter has two; repositories add a dozen")
    unpack_ratio: int = _bound(
        200, "unpacked bytes for each byte of an archive, beyond the first MiB", UNFIT, "tensors never compress better"
    )
    adapter_bytes: ByteSize = _bound(4 * GIB, "an adapter's tensors", f"{UNFIT}; 413 from a hub", "as `unpacked_bytes`")
    adapter_config_bytes: ByteSize = _bound(MIB, "adapter_config.json", UNFIT, "usual ones have 1 KB")
    adapter_header_bytes: ByteSize = _bound(16 * MIB, "the header of its tensors", UNFIT, "some 130 bytes per tensor")
    adapter_tensors: int = _bound(
        20_000, "tensors of an adapter", UNFIT, "all layers of a model with 70 billion parameters have 1,120"
    )
    adapter_patterns: int = _bound(20_000, "entries of rank_pattern and alpha_pattern", UNFIT, "one for each tensor")
    pattern_seconds: float = _bound(
        3.0, "seconds of CPU for the patterns of an adapter", UNFIT, "one for each of 560 layers takes 0.14 s"
    )
    adapter_check_seconds: float = _bound(
        120.0, "seconds that the check of an adapter may take", UNFIT, "the largest one, from a slow disk"
    )
    adapter_check_memory: ByteSize = _bound(
        8 * GIB,
        "address space of the process that checks it",
        UNFIT,
        "twice the largest adapter, which is memory-mapped",
    )
    adapter_download_seconds: float = _bound(
        1800.0, "seconds of an adapter's download", "503 `hub_unavailable`", "4 GiB over 20 Mbit/s"
    )
    adapter_versions: int = _bound(
        100,
        "versions of an adapter, besides those with an alias",
        "the oldest that no request uses are removed",
        "a fine-tune each night for three months; 10,000 take 0.2 s of each registration, and all their files stay",
    )
    combine_seconds: float = _bound(
        1800.0,
        "seconds to combine or merge adapters",
        "503 `compose_timeout`",
        "each layer of a large model is factorised",
    )
    recipe_versions: int = _bound(
        100,
        "versions of a model's recipe that were made by requests",
        "the oldest whose model is neither in memory nor pinned are removed",
        "each is a model in the list of models; an edit with 400 takes a second, and so does each start",
    )
    router_versions: int = _bound(
        100,
        "versions of a router, besides those with an alias",
        "the oldest are removed",
        "as `adapter_versions`; all are listed with the router",
    )
    router_targets: int = _bound(
        1000,
        "targets of a router, and names in any list of its definition",
        ROUTER,
        "each is considered for each request",
    )
    router_rules: int = _bound(200, "rules of a router", ROUTER, "the same, on the event loop that feeds all streams")
    router_patterns: int = _bound(
        200, "patterns of headers in all its rules", ROUTER, "2 ms to compile each; 2,000 took 90 s without that bound"
    )
    router_intents: int = _bound(2000, "intents that a router names", ROUTER, "the largest public sets have 150")
    fitted_bytes: ByteSize = _bound(
        64 * MIB, "a model fitted for a router", "413", "150 intents have 20 MB; it is in memory while in use"
    )
    routers_bytes: ByteSize = _bound(
        GIB,
        "all versions of all routers together, with the models fitted for them",
        "413",
        "150 intents have 20 MB, and each fit is a version; those in use are in memory",
    )
    response_bytes: ByteSize = _bound(
        8 * MIB,
        "a stored response with all of its input",
        "413 `response_too_large`",
        "twice the largest body of a conversation",
    )
    responses_bytes: ByteSize = _bound(
        256 * MIB,
        "stored responses of a team together; the oldest are deleted first",
        "429 `responses_full`, if all of them still run",
        "a working day of an agent: hundreds of turns of a megabyte",
    )
    viewers: int = _bound(
        64,
        "viewers of the console's page Now at a time",
        "429",
        "each gets an update every second, all day",
    )
    sample_rate_least: int = _bound(
        4_000, "minimum samples per second", SOUND, "at 1 per second, each becomes 16,000 of ours"
    )
    sample_rate_most: int = _bound(768_000, "samples per second", SOUND, "the rate of the finest recorders")
    channels: int = _bound(32, "channels of a recording", SOUND, "cinema sound has up to 24")
    damaged_packets: int = _bound(
        16, "packets of a recording that cannot be decoded", SOUND, "enough for slight damage"
    )
    overstated: int = _bound(
        4,
        "times `--max-audio-seconds` that a recording may claim",
        "413 `audio_too_long`",
        "the claim may be estimated from the first frames of an MP3, and later frames can be that much larger",
    )
    decoder_memory: ByteSize = _bound(
        GIB, "address space of a decoding process", SOUND, "its libraries take a quarter of it"
    )
    decoder_wait_seconds: float = _bound(
        30.0,
        "seconds without sound from a decoder, plus one for each ten seconds of sound already decoded",
        SOUND,
        "decoding takes about a thousandth of a recording's time",
    )


USUAL = Bounds()
