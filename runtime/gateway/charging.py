"""The most that a request can use, known before it runs, which limits and budgets reserve; and prices.

A token is at least a byte of the body, and no sequence is longer than the context; so the bound holds for every
tokenizer. What a chat template says of its own accord, such as a preamble, is no byte of the body: it is not foreseen.
What was reserved beyond the truth is given back at the end, and what was used beyond it is charged then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from models.messages import EmbedRequest, RerankRequest, TranscribeRequest
from models.speech.length import seconds_of
from models.text.pairs import LEAST_ROOM, OVERLAP
from registry.recipes.definition import Prices
from runtime.gateway.target import Call, ChatPayload
from tenants.costs.prices import MILLION, PriceList
from tenants.limits.limiter import Amounts
from tenants.limits.records import MAX_AMOUNT

UNKNOWN_CONTEXT = 32_768
"""Tokens of a context whose length is unknown."""
_WHOLE = TypeAdapter(int)
_COMPLETIONS_TOKENS = 16
"""vLLM's max_tokens of /v1/completions, where none is given."""
_WRITES: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
"""Calls that make tokens, and the fields that bound them. The others only count or cut tokens."""


@dataclass(frozen=True, slots=True)
class Demand:
    prompt: int = 0
    output: int = 0
    requested_output: int = 0
    """Part of the output that the client requested by number."""
    audio_ms: int = 0
    pairs: int = 0

    def amounts(self, price: PriceList) -> Amounts:
        """Amounts to reserve, cut to what a limit can be: clients may ask for any number, the ledger has 64 bits."""
        money = price.most(prompt=self.prompt, output=self.output, audio_ms=self.audio_ms, pairs=self.pairs)
        most = (self.prompt + self.output, self.audio_ms, money, self.requested_output)
        return Amounts(*(min(amount, MAX_AMOUNT) for amount in most))


def demand_of(calls: Sequence[Call], context: int | None, audio_seconds: float) -> Demand:
    """The demand of all calls of one request. audio_seconds: the longest recording that is taken."""
    demands = [_demand_of_call(call, context or UNKNOWN_CONTEXT, audio_seconds) for call in calls]
    if len(demands) == 1:
        return demands[0]
    fields: tuple[Callable[[Demand], int], ...] = (
        lambda d: d.prompt, lambda d: d.output, lambda d: d.requested_output, lambda d: d.audio_ms, lambda d: d.pairs,
    )  # fmt: skip
    return Demand(*(sum(map(value, demands)) for value in fields))


def _demand_of_call(call: Call, context: int, audio_seconds: float) -> Demand:
    match call:
        case ChatPayload():
            return _chat(call, context)
        case EmbedRequest():
            return Demand(sum(min(context, _size(text)) for text in call.inputs))
        case RerankRequest():
            query = _size(call.query, call.max_query_tokens)
            most = sum(_pair(call, query, _size(text, call.max_document_tokens), context) for text in call.documents)
            return Demand(most, pairs=len(call.documents))
        case TranscribeRequest():
            return Demand(audio_ms=round(1e3 * min(audio_seconds, seconds_of(Path(call.path)))))


def pairs_of(calls: Sequence[Call]) -> int:
    """Count the pairs of query and document."""
    return sum(len(call.documents) for call in calls if isinstance(call, RerankRequest))


def _size(text: str | list[int], most: int = 0) -> int:
    """Tokens at most; two beside them begin and end it. most: the client has all others cut; 0: none."""
    tokens = len(text.encode(errors="replace")) if isinstance(text, str) else len(text)
    return 2 + (min(tokens, most) if most else tokens)


def _pair(call: RerankRequest, query: int, document: int, context: int) -> int:
    """A document that is longer than its query leaves room for is read in chunks, each as long as the context."""
    if call.truncate or query + document <= context:
        return min(context, query + document)
    room = max(LEAST_ROOM, context - query - 2)
    shared = room // OVERLAP
    chunks = max(1, -(-(document - shared) // (room - shared)))
    return context * min(chunks, call.max_chunks or chunks)


def _chat(call: ChatPayload, context: int) -> Demand:
    if call.path not in _WRITES:
        return Demand()
    body = call.body
    prompts = _prompts(body) if call.path == "/v1/completions" else 1
    size = len(msgspec.json.encode(body))
    prompt = min(size, context * prompts)
    answers = prompts * max(1, *(_whole(body.get(name)) or 1 for name in ("n", "best_of")))
    given = next((n for name in _WRITES[call.path] if (n := _whole(body.get(name))) is not None), None)
    if given is None and call.path == "/v1/completions" and not call.fills:
        given = _COMPLETIONS_TOKENS
    output = answers * (context if given is None else min(given, context))
    return Demand(prompt, output, 0 if given is None else output)


def _prompts(body: Mapping[str, Any]) -> int:
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1


def _whole(value: object) -> int | None:
    """As vLLM reads it: '5' and 5.0 are 5 to it. What is no number it refuses."""
    try:
        number = _WHOLE.validate_python(value)
    except ValidationError:
        return None
    return number if number >= 0 else None


@lru_cache(maxsize=1024)
def price_list(prices: Prices) -> PriceList:
    """In millionths of the currency."""

    def micro(amount: float) -> int:
        return round(amount * MILLION)

    cached = prices.input if prices.cached_input is None else prices.cached_input
    written = prices.input if prices.written_input is None else prices.written_input
    return PriceList(
        micro(prices.input), micro(cached), micro(prices.output), micro(prices.audio_hour), micro(prices.pairs),
        micro(written) - micro(prices.input),
    )  # fmt: skip
