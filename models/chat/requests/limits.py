"""Check a request's bytes, entries and answer length, and fields reserved for the engine."""

import msgspec

from models.chat.requests.request import CHAT, MESSAGES, TOKENIZING, ChatRequest, begins, list_items, number
from registry.base.json import NOT_JSON
from registry.bounds import Bounds
from registry.errors import BadRequest, TooLarge

LEAST_TOP_P = b"1e-12"
LEAST_BUDGET = 1024
"""Anthropic's least `thinking.budget_tokens`."""
TOKEN_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Token limits: of Chat Completions, where it outweighs the next; of all but Responses; of Responses."""
INTERNAL = ("data_parallel_rank", "ec_transfer_params", "kv_hints", "kv_transfer_params", "priority", "use_beam_search")
"""Fields for communication between engines, or that influence the order. vLLM's beam search ignores priorities."""
WALKED = frozenset(
    {
        "bad_words", "chat_template_kwargs", "documents", "include", "media_io_kwargs", "metadata",
        "mm_processor_kwargs", "stop_token_ids", "vllm_xargs",
    }
)  # fmt: skip
"""Lists and objects whose entries vLLM visits one by one on the loop that feeds all streams."""
BAD_WORD_BYTES = 16_384
"""Bytes of all `bad_words`. vLLM looks for each with and without a leading blank. On a GPU EngineCore has a buffer of
this many tokens per request, and dies if a request needs more.
"""
ROLES = frozenset({"assistant", "developer", "function", "system", "tool", "user"})


def check_size(request: ChatRequest, context_length: int, bounds: Bounds, *, text_only: bool = True) -> None:
    """Raise TooLarge for a body with too many bytes per token of context; models with images accept larger ones.

    vLLM needs 2 s for a prompt of 2 MB, partly on the loop that feeds the streams; 3.4 MB of messages stopped all
    streams for a second. Even a prompt to be truncated is first tokenised completely.
    """
    if request.path in TOKENIZING or request.has("truncate_prompt_tokens"):
        limit = max(bounds.text_bytes_least, bounds.text_bytes_per_token * context_length)
    else:
        limit = max(bounds.body_bytes_least, bounds.body_bytes_per_token * context_length)
    if len(request.body) > limit and (text_only or request.path in TOKENIZING):
        raise TooLarge(
            f"{request.path} takes up to {limit} bytes for this model; {len(request.body)} were sent. Send less, or in "
            "parts."
        )


def check_tokens(request: ChatRequest, largest: int) -> None:
    """Raise BadRequest for a token id of /detokenize over `largest`, for which vLLM would give no text."""
    try:
        ids = msgspec.json.decode(request.fields.get("tokens", b"[]"), type=list[int], strict=False)
    except NOT_JSON:
        return  # vLLM refuses it
    if ids and max(ids) > largest:
        raise BadRequest(
            f"Token {max(ids)} is not in this model's vocabulary, which ends at {largest}: leave it out.",
            param="tokens",
        )


def check(request: ChatRequest, context_length: int, bounds: Bounds) -> None:
    """Raise BadRequest for a field that is too large or that clients may not set."""
    fields = request.fields
    _check_internal(request, bounds)
    for name, most in (("stop", bounds.stops), ("stop_sequences", bounds.stops), ("tools", bounds.tools)):
        _within(len(request.items(name)), most, name)
    for name in ("messages", "input"):
        _within(len(request.items(name)), min(max(bounds.messages_least, context_length), bounds.messages), name)
        _check_parts(request, name, bounds)
    for name in WALKED & fields.keys():
        _within(_entries(request, name), bounds.entries, name)
    _check_answers(request, context_length, bounds)
    if sum(2 * len(word) for word in {bytes(raw) for raw in request.items("bad_words")}) > BAD_WORD_BYTES:
        raise BadRequest(
            f"'bad_words' may have {BAD_WORD_BYTES // 2} bytes of JSON together. Send fewer, or shorter ones.",
            param="bad_words",
            code="too_many_entries",
        )
    pattern = request.raw_object("repetition_detection").get("max_pattern_size")
    if pattern is not None and number(pattern, 0) > bounds.repetition_pattern:
        raise BadRequest(
            f"Patterns of up to {bounds.repetition_pattern} tokens are looked for.",
            param="repetition_detection.max_pattern_size",
            code="invalid_value",
        )
    if "logit_bias" in fields:
        _within(_entries(request, "logit_bias"), bounds.biases, "logit_bias")
    if request.is_on("echo") and "logprobs" in fields:
        _within(request.number("n", 1) * request.number("logprobs", 0), bounds.prompt_logprobs, "logprobs")
    if "prompt_logprobs" in fields:
        count = request.number("n", 1) * request.number("prompt_logprobs", 0)
        _within(count, bounds.prompt_logprobs, "prompt_logprobs")
        if request.is_on("stream"):  # vLLM refuses it too, but ignores a 0
            raise BadRequest(
                "A stream has no 'prompt_logprobs': leave the field out, or 'stream'.",
                param="prompt_logprobs",
                code="unsupported_value",
            )
    if request.path == CHAT:
        _check_roles(request)


def token_limits(request: ChatRequest) -> dict[str, int]:
    """Return the requested lengths of the answer, by field."""
    limits: dict[str, int] = {}
    for name in TOKEN_FIELDS & request.fields.keys():
        try:
            limits[name] = msgspec.json.decode(request.fields[name], type=int, strict=False)
        except NOT_JSON:
            continue  # vLLM refuses it
    return limits


def cut_tokens(request: ChatRequest, most: int) -> None:
    """Lower the requested length of the answer to at most `most` tokens.

    Anthropic's budget of thinking must be smaller, so it is lowered, too, if the client's was.
    """
    limits = token_limits(request)
    for name, value in limits.items():
        if value > most:
            request.replace(name, str(most).encode())
    thinking = request.raw_object("thinking") if request.path == MESSAGES else {}
    budget = number(thinking["budget_tokens"], 0) if "budget_tokens" in thinking else 0
    if LEAST_BUDGET < most <= budget < limits.get("max_tokens", 0):
        request.replace("thinking", msgspec.json.encode({**thinking, "budget_tokens": most - 1}))


def allow_top_p_of_zero(request: ChatRequest) -> None:
    """Support `top_p: 0` (only the likeliest token), which OpenAI and Anthropic document but vLLM refuses."""
    if "top_p" in request.fields and request.value("top_p") == 0 and request.fields["top_p"] != b"false":
        request.replace("top_p", LEAST_TOP_P)


def cut_warning(limits: dict[str, int], allowed: int | None) -> str:
    """Return a warning if the answer may be shorter than the client's `token_limits`; '' if not."""
    most = min(limits.values(), default=0)
    if allowed is None or allowed >= most:
        return ""
    return f"max_tokens was cut from {most} to {allowed}: the context has no room for more"


def _check_answers(request: ChatRequest, context_length: int, bounds: Bounds) -> None:
    """Bound the number of answers, and the logprobs sent in one piece."""
    answers = _prompts(request) * request.number("n", 1)
    if answers > bounds.answers:
        raise BadRequest(
            f"This request is for {answers} answers; up to {bounds.answers} are given. Send it in parts.",
            param="n" if "n" in request.fields else "prompt",
            code="too_many_entries",
        )
    name = "top_logprobs" if "top_logprobs" in request.fields else "logprobs"
    limit = next((field for field in TOKEN_FIELDS if field in request.fields), "")
    tokens = request.number(limit, context_length)
    logprobs = answers * request.number(name, 0) * min(tokens, context_length)
    if logprobs > bounds.logprobs and not request.is_true("stream"):
        raise BadRequest(
            f"This request is for up to {logprobs} logprobs in one piece; up to {bounds.logprobs} are given. Ask for a "
            "stream, or for fewer answers, tokens ('max_tokens') or logprobs.",
            param=name,
            code="too_many_entries",
        )


def _check_internal(request: ChatRequest, bounds: Bounds) -> None:
    for name in INTERNAL:
        if name in request.fields and request.is_on(name):
            raise BadRequest(f"{name} is not for clients to set: leave it out.", param=name, code="unsupported_value")
    request_id = request.text("request_id")
    if not (request_id.isprintable() and len(request_id) <= bounds.request_id_letters):
        raise BadRequest(
            f"A request_id is one line of up to {bounds.request_id_letters} printable characters.",
            param="request_id",
            code="invalid_value",
        )


def _check_parts(request: ChatRequest, name: str, bounds: Bounds) -> None:
    total = 0
    for index, turn in enumerate(request.turns(name)):
        for field in ("content", "output") if turn is not None else ():
            count = len(list_items(getattr(turn, field)))
            _within(count, bounds.parts, f"{name}[{index}].{field}")
            total += count
    _within(total, bounds.parts_all, f"{name}[].content")


def _check_roles(request: ChatRequest) -> None:
    turns = request.turns("messages")
    if None in turns:
        return  # vLLM refuses it
    for index, turn in enumerate(turns):
        if turn is not None and isinstance(turn.role, str) and turn.role not in ROLES:
            raise BadRequest(
                f"{turn.role[:50]!r} is not a role of a message. Use one of: {', '.join(sorted(ROLES))}.",
                param=f"messages[{index}].role",
                code="invalid_value",
            )


def _entries(request: ChatRequest, name: str) -> int:
    """Return the number of entries of a list or object; 0 for anything else, which vLLM refuses."""
    return len(request.raw_object(name)) if request.is_object(name) else len(request.items(name))


def _prompts(request: ChatRequest) -> int:
    """Return the number of prompts. A list of numbers is one prompt of tokens."""
    items = request.items("prompt")
    return len(items) if items and any(begins(items[0], mark) for mark in (b'"', b"[", b"{")) else 1


def _within(count: int, most: int, name: str) -> None:
    if count > most:
        raise BadRequest(f"'{name}' has {count} entries; up to {most} are taken.", param=name, code="too_many_entries")
