"""Upper bounds on one request, each with its reason.

A bound is a number that a client can reach. `--bounds NAME=VALUE` sets those in TUNABLE; `--bounds-factor` scales all
others. What a machine can do (memory, slots, times) are settings of their own.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ByteSize, ConfigDict, Field, JsonValue

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNFIT, SOUND, ROUTER = "422 `unfit_adapter`", "400 `invalid_audio`", "422 `bad_router`"
TUNABLE = (
    "json_values", "messages", "answers", "tools", "grammar_bytes", "choices", "properties", "enum_entries",
    "compile_seconds", "grammar_cache", "upload_seconds", "inputs", "documents", "unpacked_bytes", "adapter_bytes",
    "adapter_check_seconds", "adapter_download_seconds", "combine_seconds", "routers_bytes", "responses_bytes",
    "viewers",
)  # fmt: skip
"""Bounds that have an option of their own."""
UNSCALED = ("nesting", "sample_rate_least")
"""vLLM's own limit, and the one bound that is a least value."""
TOO_LARGE, TOO_SLOW, ENTRIES = "400 `grammar_too_large`", "400 `grammar_too_slow`", "400 `too_many_entries`"


def _bound(default: float, what: str, over: str, why: str, most: float | None = None) -> Any:
    """what: is counted. over: what happens beyond it. why: the reason of the default."""
    extra: dict[str, JsonValue] = {"over": over, "why": why}
    return Field(default, description=what, json_schema_extra=extra, gt=0, le=most)


class Bounds(BaseModel):
    """All bounds of one server. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def scaled(cls, factor: float, given: Mapping[str, object]) -> dict[str, object]:
        """Values to validate: what is given, else the default times the factor."""
        values: dict[str, object] = {}
        for name, field in cls.model_fields.items():
            value = field.default if name in UNSCALED else field.default * factor
            values[name] = max(1, int(value)) if isinstance(field.default, int) else value
        return {**values, **given}

    body_bytes_per_token: int = _bound(
        64,
        "bytes of a body to a chat model, for each token of its context",
        "413",
        "text has 3 to 5 bytes a token, six times that where JSON escapes each letter; only runs of blanks have more",
    )
    body_bytes_least: ByteSize = _bound(
        MIB,
        "bytes that such a body may have in any case",
        "413",
        "schemas, tools and biases do not count as prompt",
    )
    json_values: int = _bound(
        65_536,
        "lists, objects and texts of any JSON body, counted while it comes",
        "413",
        "4,096 messages with as many parts have 40,000; to decode 1.4 million keeps all streams waiting for 0.3 s",
    )
    text_bytes_per_token: int = _bound(
        16,
        "the same for `/tokenize` and `/detokenize`, and for prompts that are to be cut",
        "413",
        "a prompt of 2 MB takes vLLM 2 s, part of it on the loop that feeds all streams",
    )
    text_bytes_least: ByteSize = _bound(64 * KIB, "bytes that those may have in any case", "413", "a page or two")
    messages: int = _bound(
        4096,
        "messages, or items of an input, and no more than the context has tokens",
        ENTRIES,
        "vLLM takes 65 us for each on the loop that feeds all streams",
    )
    messages_least: int = _bound(
        256, "messages that there may be in any case", ENTRIES, "a small context holds few; vLLM says so more clearly"
    )
    parts: int = _bound(
        256, "parts of one message's content", ENTRIES, "vLLM notes 34 faults of an invalid part, on that loop"
    )
    parts_all: int = _bound(4096, "parts of all contents", ENTRIES, "30 us each, on that loop")
    stops: int = _bound(64, "`stop`, `stop_sequences`", ENTRIES, "OpenAI takes 4; each is looked for in all text")
    answers: int = _bound(
        1024,
        "answers of one request: prompts times `n`",
        ENTRIES,
        "vLLM's own bound on prompts; 300 times 128 took 12 s and so much memory that the engine was restarted",
    )
    entries: int = _bound(
        2048,
        "entries of other fields, such as `metadata`, `bad_words` and `chat_template_kwargs`",
        ENTRIES,
        "50,000 of the last kept all streams waiting for 0.5 s",
    )
    biases: int = _bound(2048, "`logit_bias` entries", ENTRIES, "300,000 kept all streams waiting for 0.4 s")
    repetition_pattern: int = _bound(
        64,
        "tokens of a pattern that `repetition_detection` looks for",
        "400 `invalid_value`",
        "vLLM looks after each token, in its step: with 4,000 an answer of 16,000 tokens held all others up for 1.5 s",
    )
    tools: int = _bound(128, "`tools`", ENTRIES, "OpenAI takes 128")
    prompt_logprobs: int = _bound(
        128,
        "`n` times `prompt_logprobs`, or `logprobs` with `echo`",
        ENTRIES,
        "vLLM works them out, and sends them, for each answer",
    )
    logprobs: int = _bound(
        131_072,
        "`logprobs` or `top_logprobs` times answers times `max_tokens` (else the context), without a stream",
        ENTRIES,
        "they are written in one piece on that loop: 1.2 million (128 answers, 20 for each of 480 tokens) kept an "
        "engine silent until it was restarted",
    )
    request_id_letters: int = _bound(128, "letters of a `request_id`", "400 `invalid_value`", "it goes into logs")
    grammar_bytes: ByteSize = _bound(
        128 * KIB, "bytes of a schema or grammar", TOO_LARGE, "OpenAI takes schemas of 120,000 characters"
    )
    regex_bytes: ByteSize = _bound(
        16 * KIB, "bytes of its regular expressions", TOO_LARGE, "what is longer is better checked in your own code"
    )
    choices: int = _bound(
        2000,
        "choices",
        TOO_LARGE,
        "time grows with their square: 1,000 take 30 ms to compile, 10,000 take 1.1 s and 0.5 GB (xgrammar 0.2.8)",
    )
    properties: int = _bound(1000, "properties and definitions of a schema", TOO_LARGE, "usual ones have under 100")
    enum_entries: int = _bound(2000, "`enum` entries of a schema", TOO_LARGE, "OpenAI takes 1,000")
    nesting: int = _bound(
        64, "levels of nesting", TOO_LARGE, "vLLM's own bound, which it looks at after it has parsed all", 64
    )
    repetitions: int = _bound(
        10_000, "repetitions of a part, as in `{10}`", TOO_LARGE, "each is a state of the compiled grammar"
    )
    references: int = _bound(
        64, "`$ref`s that lead to one another", "400 `invalid_grammar`", "more are taken for a circle"
    )
    compile_seconds: float = _bound(
        5.0,
        "seconds of CPU to compile a grammar with a vocabulary of 131,072; fewer with a smaller one, 0.5 at least",
        TOO_SLOW,
        "100 strings of bounded length take 2 s with a vocabulary of 130,000, 0.01 s with one of 320; what takes longer"
        " can be read in too many ways, and following it costs more with every token",
    )
    compile_memory: ByteSize = _bound(
        256 * MIB, "what compiling takes beside the process itself", TOO_LARGE, "usual schemas take a few MiB"
    )
    compiled_bytes: ByteSize = _bound(
        16 * MIB, "what it holds when compiled", TOO_LARGE, "usual ones 0.03 to 1 MB; the engine holds it per request"
    )
    grammar_check_seconds: float = _bound(
        20.0, "seconds that a check may take on a busy machine", "503 `grammar_check_busy`", "clients wait 60 and more"
    )
    walked_tokens: int = _bound(
        64, "tokens by which a grammar is tried out", TOO_SLOW, "what is ambiguous costs more with every token"
    )
    follow_seconds: float = _bound(
        0.1,
        "seconds of CPU to follow a grammar, beside those for each token",
        f"{TOO_SLOW}, or later the end of its request",
        "each token of all requests would wait for it",
    )
    follow_token_seconds: float = _bound(
        0.003,
        "the same for each token",
        f"{TOO_SLOW}, or later the end of its request",
        "usual ones take 0.0002 s; 100 strings of bounded length 0.025 at their worst token (vocabulary of 130,000)",
    )
    grammars_waiting: int = _bound(
        32,
        "grammars of a team that wait for their check at an engine; eight times as many of all teams",
        "429 `grammar_queue_full`",
        "as many as run in a usual batch",
    )
    verdict_cache: ByteSize = _bound(
        8 * MIB, "verdicts that are kept", "the oldest goes", "some 500 bytes each; more with the choices of one"
    )
    grammar_cache: ByteSize = _bound(
        64 * MIB,
        "compiled grammars that an engine keeps",
        "the oldest goes",
        "usual ones 0.03 to 1 MB; vLLM's own 512 MB made a small model's engine the largest process of the machine",
    )
    pipelined: int = _bound(
        256,
        "requests that a connection sends before it has the answers to those before",
        "closed",
        "some 3 KB each; no client in use sends more than a few",
    )
    form_bytes: ByteSize = _bound(
        256 * KIB, "a form's fields together, with the headers of all its parts", "413", "a prompt is the longest one"
    )
    form_parts: int = _bound(128, "parts of a form", "400 `invalid_form`", "no endpoint knows more than 30 fields")
    upload_pause_seconds: float = _bound(
        30.0, "seconds in which nothing of an upload comes", "408", "a mobile network's pause"
    )
    upload_seconds: float = _bound(900.0, "seconds of an upload", "408", "2 GiB over 20 Mbit/s")
    inputs: int = _bound(2048, "inputs of one request for embeddings", "400 `too_many_inputs`", "OpenAI takes so many")
    documents: int = _bound(
        2048,
        "documents, or pairs, of one request to a reranker",
        "400 `too_many_documents`",
        "Cohere advises 1,000; each is a run of the model, or several",
    )
    unpacked_bytes: ByteSize = _bound(
        4 * GIB,
        "what an adapter's archive unpacks to",
        UNFIT,
        "rank 128 on all layers of a model of 70 billion parameters has 3.3 GB",
    )
    unpacked_files: int = _bound(64, "members of an archive", UNFIT, "an adapter is two; repositories add a dozen")
    unpack_ratio: int = _bound(
        200, "bytes for each byte of an archive, once it has unpacked 1 MiB", UNFIT, "tensors never pack better"
    )
    adapter_bytes: ByteSize = _bound(4 * GIB, "an adapter's tensors", f"{UNFIT}; of a hub 413", "as `unpacked_bytes`")
    adapter_config_bytes: ByteSize = _bound(MIB, "adapter_config.json", UNFIT, "usual ones have 1 KB")
    adapter_header_bytes: ByteSize = _bound(
        16 * MIB, "the header of its tensors", UNFIT, "some 130 bytes for each of them"
    )
    adapter_tensors: int = _bound(
        20_000, "tensors of an adapter", UNFIT, "all layers of a model of 70 billion parameters have 1,120"
    )
    adapter_patterns: int = _bound(20_000, "entries of rank_pattern and alpha_pattern", UNFIT, "one for each tensor")
    pattern_seconds: float = _bound(
        3.0, "seconds of CPU for the patterns of an adapter", UNFIT, "one for each of 560 layers takes 0.14"
    )
    adapter_check_seconds: float = _bound(
        120.0, "seconds that the check of an adapter may take", UNFIT, "the largest one, from a slow disk"
    )
    adapter_check_memory: ByteSize = _bound(
        8 * GIB, "address space of the process that checks it", UNFIT, "twice the largest: it is mapped"
    )
    adapter_download_seconds: float = _bound(
        1800.0, "seconds of an adapter's download", "503 `hub_unavailable`", "4 GiB over 20 Mbit/s"
    )
    combine_seconds: float = _bound(
        1800.0, "seconds to combine or to merge", "503 `compose_timeout`", "each layer of a large model is factorised"
    )
    router_targets: int = _bound(
        1000,
        "targets of a router, and names in any list of its definition",
        ROUTER,
        "each is looked at for each request",
    )
    router_rules: int = _bound(200, "rules of a router", ROUTER, "the same, on the loop that feeds all streams")
    router_patterns: int = _bound(
        200, "patterns of headers in all its rules", ROUTER, "2 ms to compile each; 2,000 without a bound took 90 s"
    )
    router_intents: int = _bound(2000, "intents that a router names", ROUTER, "the largest public sets have 150")
    fitted_bytes: ByteSize = _bound(
        64 * MIB, "a model that was fitted for a router", "413", "150 intents have 20 MB; it is in memory while in use"
    )
    routers_bytes: ByteSize = _bound(
        GIB,
        "all versions of all routers together, with what was fitted for them",
        "413",
        "150 intents have 20 MB, and each fit is a version; those in use are in memory",
    )
    response_bytes: ByteSize = _bound(
        8 * MIB,
        "a stored response with all that it was given",
        "413 `response_too_large`",
        "the largest body of a conversation, twice",
    )
    responses_bytes: ByteSize = _bound(
        256 * MIB,
        "stored responses of a team together; the oldest go first",
        "429 `responses_full`, where all of them still run",
        "a working day of an agent: hundreds of turns of a megabyte",
    )
    viewers: int = _bound(
        64,
        "people who look at the console's page Now at a time",
        "429",
        "each gets an update every second, all day",
    )
    sample_rate_least: int = _bound(4_000, "samples a second, at least", SOUND, "at 1, each makes 16,000 of ours")
    sample_rate_most: int = _bound(768_000, "samples a second", SOUND, "the finest recorders have so many")
    channels: int = _bound(32, "channels of a recording", SOUND, "cinemas have 24")
    damaged_packets: int = _bound(16, "packets of a recording that cannot be decoded", SOUND, "a scratch, not a ruin")
    overstated: int = _bound(
        4,
        "times `--max-audio-seconds` that a recording may claim",
        "413 `audio_too_long`",
        "a claim may be an estimate by the first frames of an MP3, and later ones can be so much larger",
    )
    decoder_memory: ByteSize = _bound(
        GIB, "address space of a process that decodes", SOUND, "its libraries take a quarter of it"
    )
    decoder_wait_seconds: float = _bound(
        30.0,
        "seconds without sound from a decoder, and one more for each ten of sound that have come",
        SOUND,
        "decoding takes about a thousandth of a recording's time",
    )


USUAL = Bounds()
