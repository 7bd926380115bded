"""Classifies a provider's failure by status, words and headers. Pure.

| status                | words (type or code)                | error              | retry | breaker |
|-----------------------|-------------------------------------|--------------------|-------|---------|
| any                   | about money, or 402 without Retry-After | provider_no_credit | no     | -       |
| 401, 403              | or about the key, such as invalid_api_key | provider_key | no    | -       |
| 404, 410              |                                     | provider_model     | no    | -       |
| 429                   | or 402 with Retry-After, as OpenRouter's while many run | provider_busy | yes | -   |
| 503, 529, 498         | or overloaded_error in a 200        | provider_overloaded | yes  | counts  |
| 408, 409, 424, 5xx    | or another error event in a 200     | provider_failed    | yes   | counts  |
| 3xx                   |                                     | provider_answer    | no    | counts  |
| 403                   | about the content, as from OpenRouter's moderation | the client's own fault | no | - |
| 404                   | about a field other than the model  | the client's own fault | no | -     |
| other 4xx             |                                     | the client's own fault: passed on unchanged | no | - |

An error in a 200 whose code is a status, as with OpenRouter and vLLM, counts as that status. If its words blame the
request, such as invalid_prompt, it counts as a 400.
`x-should-retry: false` makes any of them final. Failures without an answer are handled in `connection`.
"""

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from registry.base.json import NOT_JSON
from registry.errors import ProviderBusy, ProviderFailed, ProviderOverloaded

MONEY = frozenset(
    {
        "billing_error",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "enforced_spend_limit_reached",
        "insufficient_quota",
        "organization_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "project_spend_limit_exceeded",
    }
)
KEY = frozenset({"API_KEY_INVALID", "invalid_api_key"})
"""Google reports a bad key with a 400, although it is not the client's fault."""
LIMITED = frozenset({"rate_limit_error", "rate_limit_exceeded", "requests", "tokens"})
OVERLOADED = frozenset({"overloaded_error", "overloaded"})
CONTENT = "content_policy_violation"
BLOCKED = frozenset({"flagged_input", "patterns"})
"""Fields of `metadata` in a 403 with which OpenRouter's moderation and guardrails refuse a request's content."""
NOT_THE_CLIENTS = frozenset({401, 402, 403, 404, 408, 409, 410, 424, 429, 498})
"""Statuses of 4xx that are not about the request. Azure answers a failure of the model with a 424, and Groq a lack of
capacity with a 498."""
REFUSED = frozenset(
    [
        "invalid_request_error",
        "invalid_prompt",
        "bio_policy",
        "misalignment_policy_violation",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_content_policy_violation",
        "invalid_image_mode",
        "image_file_too_large",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
        "image_file_not_found",
    ]
)
"""Words of errors in a 200 that blame the request, as in the Responses API."""
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")
"""A duration in the JSON of Google's APIs."""
QUOTED = 300
"""Most characters of a provider's own message that are passed on."""


class ErrorWords(msgspec.Struct):
    message: str = ""
    type: str | None = None
    code: str | int | None = None
    param: str | None = None
    reason: str | None = None
    """Google's reason, from an error's details; CONTENT for OpenRouter's refusals of content."""

    @property
    def names(self) -> set[str]:
        return {name for name in (self.type, self.code, self.reason) if isinstance(name, str)}


def read(body: bytes) -> ErrorWords:
    """Read an error body in any vendor's format, or as text.

    The message is empty for an HTML page, such as a proxy's.
    """
    try:
        content = msgspec.json.decode(body)
    except NOT_JSON:
        text = body.decode(errors="replace").strip()
        return ErrorWords("" if text.startswith("<") or "\ufffd" in text else text[:QUOTED])
    if isinstance(content, list):
        content = next(iter(content), None)
    if not isinstance(content, dict):
        return ErrorWords(_text(content))
    error = content.get("error")
    named = error if isinstance(error, dict) else content
    code, details, metadata = named.get("code"), named.get("details"), named.get("metadata")
    reasons = [_named(detail, "reason") for detail in details] if isinstance(details, list) else []
    if isinstance(metadata, dict) and metadata.keys() & BLOCKED:
        reasons.append(CONTENT)
    return ErrorWords(
        _text(content),
        _named(named, "type"),
        code if type(code) in (str, int) else None,
        _named(named, "param"),
        next(filter(None, reasons), None),
    )


def is_error(body: bytes) -> bool:
    """Whether a supposed answer describes an error, in any format."""
    try:
        return bool(_text(msgspec.json.decode(body, type=dict[str, Any])))
    except NOT_JSON:
        return False


def _named(value: object, name: str) -> str | None:
    member = value.get(name) if isinstance(value, dict) else None
    return member if isinstance(member, str) else None


def _text(value: object, depth: int = 4) -> str:
    """Return the text of an error at any depth: FastAPI lists faults with their locations."""
    match value:
        case str():
            return value
        case list() if depth:
            return "; ".join(filter(None, (_text(one, depth - 1) for one in value)))
        case {"error": inner} | {"detail": inner} | {"message": inner} if inner and depth:
            return _text(inner, depth - 1)
        case {"msg": str(message), **more}:
            where = more.get("loc")
            return f"{'.'.join(map(str, where))}: {message}" if isinstance(where, list) else message
    return ""


def is_the_clients(status: int, body: bytes) -> bool:
    """Whether any server would refuse the same request."""
    words = read(body)
    status = _status(status, words)
    if words.names & (MONEY | KEY):
        return False
    is_about_content = status == 403 and words.reason == CONTENT
    names_other_field = status == 404 and words.param not in (None, "", "model")  # such as a file or an earlier item
    return is_about_content or names_other_field or (400 <= status < 500 and status not in NOT_THE_CLIENTS)


def _status(status: int, words: ErrorWords) -> int:
    """Return the status of an error: a 200 may contain another one in its body."""
    if status != 200:
        return status
    if isinstance(words.code, int) and 400 <= words.code < 600:
        return words.code
    return 400 if words.names & REFUSED and not words.names & (LIMITED | OVERLOADED) else status


def failure(provider: str, status: int, body: bytes, headers: Mapping[str, str]) -> ProviderFailed:
    """Return the error for a failed answer. status: 200 for an error event in mid-answer."""
    words = read(body)
    where = "in mid-answer" if status == 200 else f"with status {status}"
    status = _status(status, words)
    quote = f" It said: {words.message[:QUOTED]}" if words.message else ""
    after, again = retry_after(headers), headers.get("x-should-retry", "").lower() != "false"
    after = _retry_delay(body) if after is None else after
    if (status == 402 and after is None) or words.names & MONEY:
        return ProviderFailed(
            f"Provider '{provider}' has no credit left for this server.{quote}", code="provider_no_credit", counts=False
        )
    if status in (401, 403) or words.names & KEY:
        refused = f"Provider '{provider}' refused this server's key: the operator has to look at its variable."
        if status == 403:  # it may be about the request; a 401 often quotes parts of the key
            refused = f"Provider '{provider}' does not allow this request, or not with this server's key.{quote}"
        return ProviderFailed(refused, code="provider_key", counts=False)
    if status in (404, 410):
        return ProviderFailed(
            f"Provider '{provider}' does not have this model or path: the operator has to look at its recipe.{quote}",
            code="provider_model",
            counts=False,
        )
    if status in (402, 429) or (status == 200 and words.names & LIMITED):
        return ProviderBusy(
            f"Provider '{provider}' takes no more requests now.{quote}", retry_after=after, again=again, counts=False
        )
    if status in (498, 503, 529) or words.names & OVERLOADED:
        return ProviderOverloaded(f"Provider '{provider}' is overloaded.{quote}", retry_after=after or 1.0, again=again)
    if 300 <= status < 400:
        return ProviderFailed(
            f"Provider '{provider}' answered with a redirect, which is not followed.", code="provider_answer"
        )
    return ProviderFailed(f"Provider '{provider}' failed {where}.{quote}", retry_after=after, again=again)


def _retry_delay(body: bytes) -> float | None:
    """Return the seconds that Google's RetryInfo names in an error's details, such as "34.07s". It sends no header."""
    try:
        content = msgspec.json.decode(body)
    except NOT_JSON:
        return None
    content = content[0] if isinstance(content, list) and content else content
    error = content.get("error") if isinstance(content, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    delays = [_named(detail, "retryDelay") for detail in details] if isinstance(details, list) else []
    matches = (_SECONDS.fullmatch(delay) for delay in delays if delay)
    return next((float(match[1]) for match in matches if match), None)


def bad_answer(provider: str, what: str) -> ProviderFailed:
    return ProviderFailed(f"Provider '{provider}' {what}.", code="provider_answer")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in `retry-after-ms` or `Retry-After`. Dates are relative to the response's `Date`."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    try:
        gap = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, gap.total_seconds())
