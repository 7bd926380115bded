"""The most usage that a request can have at a provider. Reported usage is capped at it.

Reported usage is charged to a team, so one wrong number could exhaust its month. A token is at least one byte of what
was sent, unless the provider reads more: linked files, stored conversations, results of its own tools.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from models.messages import EmbedRequest, RerankRequest, TranscribeRequest, Usage
from models.speech.length import seconds_of
from registry.base.json import NOT_JSON

OVERHEAD = 4096
"""Prompt tokens that a provider may add: its chat template and its instructions for tools."""
EXCESS_USAGE = "excess_usage"
"""Code for answers with excessive reported usage, in metrics and in the ledger."""
LONGEST = 2**21
"""Most tokens of a prompt that is not fully in the body, or of an unbounded answer. Published contexts are shorter."""
THOUGHTS = 2**16
"""Reasoning tokens, which some providers do not count towards an answer's limit."""
MAX_ANSWERS = 1024
TOKENS_PER_SECOND = 100
"""Tokens per second of a recording, for prompt and transcript. Vendors count 10 to 50."""
ROUNDING = 10.0
"""Seconds. Vendors round up, some of them to at least ten."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_REFERENCES = re.compile(
    rb'"(?:[a-z_]*url|[a-z_]*file|file_ids?|document|image|input_image|input_audio|previous_response_id|conversation'
    rb'|container|prompt_id|(?:web_search|web_fetch|file_search|code_|mcp|computer|google_)[a-z_0-9]*)"'
)


@dataclass(frozen=True, slots=True)
class UsageBounds:
    prompt: int
    completion: int = 0
    audio_seconds: float = 0.0

    def cut(self, reported: Usage) -> Usage:
        prompt = min(reported.prompt_tokens, self.prompt)
        cached = min(reported.cached_tokens, prompt)
        return msgspec.structs.replace(
            reported,
            prompt_tokens=prompt,
            completion_tokens=min(reported.completion_tokens, self.completion),
            cached_tokens=cached,
            written_tokens=min(reported.written_tokens, prompt - cached),
            audio_seconds=min(reported.audio_seconds, self.audio_seconds),
        )


def of_chat(body: bytes, context_length: int | None) -> UsageBounds:
    """Return the bounds of a chat request. body: as sent to the provider."""
    fields: Mapping[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    answers = max(1, *(_whole(fields, name) or 1 for name in ("n", "best_of")))
    prompts = fields.get("prompt", msgspec.Raw(b""))
    if bytes(prompts)[:1] == b"[":
        answers *= len(msgspec.json.decode(prompts, type=list[msgspec.Raw]))
    limit = next((limit for name in _LIMITS if (limit := _whole(fields, name)) is not None), None)
    longest = context_length or LONGEST if limit is None else min(limit, LONGEST) + THOUGHTS
    inside = len(body) + OVERHEAD
    return UsageBounds(
        max(inside, LONGEST) if _REFERENCES.search(body) else inside, min(answers, MAX_ANSWERS) * longest
    )


def of_texts(_request: EmbedRequest, body: bytes) -> UsageBounds:
    return UsageBounds(len(body) + OVERHEAD)


def of_ranking(request: RerankRequest, body: bytes) -> UsageBounds:
    """Return the bounds of a ranking. The query may count once per document."""
    repeated = len(request.query.encode(errors="replace")) * len(request.documents)
    return UsageBounds(len(body) + repeated + OVERHEAD)


def of_recording(request: TranscribeRequest, _body: bytes) -> UsageBounds:
    seconds = min(request.max_seconds, seconds_of(Path(request.path))) + ROUNDING
    tokens = round(seconds * TOKENS_PER_SECOND) + OVERHEAD
    return UsageBounds(tokens, tokens, seconds)


def _whole(fields: Mapping[str, msgspec.Raw], name: str) -> int | None:
    """Return a positive integer as providers may read it, even from a string. None if there is none."""
    try:
        return max(1, msgspec.json.decode(fields[name], type=int, strict=False))
    except (KeyError, *NOT_JSON):
        return None
