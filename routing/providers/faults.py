"""What a provider's failure is, by its status, the words in its body and the headers beside them. Pure.

| status                | words (type or code)                | error              | again | breaker |
|-----------------------|-------------------------------------|--------------------|-------|---------|
| any                   | of money, such as insufficient_quota; or 402 | provider_no_credit | no    | -       |
| 401, 403              |                                     | provider_key       | no    | -       |
| 404                   |                                     | provider_model     | no    | -       |
| 429                   |                                     | provider_busy      | yes   | -       |
| 503, 529              | or overloaded_error in a 200        | provider_overloaded | yes  | counts  |
| 408, 409, 5xx         | or another error event in a 200     | provider_failed    | yes   | counts  |
| 3xx                   |                                     | provider_answer    | no    | counts  |
| other 4xx             |                                     | the client's own: passed on as it is | no | - |

`x-should-retry: false` makes each of them final. What no answer came of: `connection`.
"""

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import msgspec

from registry.errors import ProviderBusy, ProviderFailed, ProviderOverloaded
from registry.json import NOT_JSON

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
LIMITED = frozenset({"rate_limit_error", "rate_limit_exceeded", "requests", "tokens"})
OVERLOADED = frozenset({"overloaded_error", "overloaded"})
QUOTED = 300
"""Characters of a provider's own words that are passed on."""


class Words(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    code: str | int | None = None
    param: str | None = None

    @property
    def names(self) -> set[str]:
        return {name for name in (self.type, self.code) if isinstance(name, str)}


class _Body(msgspec.Struct):
    error: Words | str | None = None
    detail: str | None = None
    message: str | None = None


def read(body: bytes) -> Words:
    """An error's body, of OpenAI's or Anthropic's shape, of FastAPI's, or Google's list of one; else empty."""
    try:
        told = msgspec.json.decode(body, type=_Body | list[_Body])
    except NOT_JSON:
        return Words()
    found = told if isinstance(told, _Body) else next(iter(told), _Body())
    if isinstance(found.error, Words):
        return found.error
    return Words(found.error or found.detail or found.message or "")


def is_the_clients(status: int, body: bytes) -> bool:
    """Would the same request be refused anywhere?"""
    return 400 <= status < 500 and status not in (401, 402, 403, 404, 408, 409, 429) and not read(body).names & MONEY


def failure(provider: str, status: int, body: bytes, headers: Mapping[str, str]) -> ProviderFailed:
    """The error of an answer that is none; status 200: of an event in mid-answer."""
    words = read(body)
    said = f" It said: {words.message[:QUOTED]}" if words.message else ""
    after, again = retry_after(headers), headers.get("x-should-retry", "").lower() != "false"
    if status == 402 or words.names & MONEY:
        return ProviderFailed(
            f"Provider '{provider}' has no credit left for this server.{said}", code="provider_no_credit", counts=False
        )
    if status in (401, 403):
        return ProviderFailed(
            f"Provider '{provider}' refused this server's key: the operator has to look at its variable.",
            code="provider_key",
            counts=False,
        )
    if status == 404:
        return ProviderFailed(
            f"Provider '{provider}' does not have this model or path: the operator has to look at its recipe.{said}",
            code="provider_model",
            counts=False,
        )
    if status == 429 or (status == 200 and words.names & LIMITED):
        return ProviderBusy(
            f"Provider '{provider}' takes no more requests now.{said}", retry_after=after, again=again, counts=False
        )
    if status in (503, 529) or words.names & OVERLOADED:
        return ProviderOverloaded(f"Provider '{provider}' is overloaded.{said}", retry_after=after or 1.0, again=again)
    if 300 <= status < 400:
        return ProviderFailed(
            f"Provider '{provider}' answered with a redirect, which is not followed.", code="provider_answer"
        )
    where = "in mid-answer" if status == 200 else f"with status {status}"
    return ProviderFailed(f"Provider '{provider}' failed {where}.{said}", retry_after=after, again=again)


def bad_answer(provider: str, what: str) -> ProviderFailed:
    return ProviderFailed(f"Provider '{provider}' {what}.", code="provider_answer")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from `retry-after-ms` or `Retry-After`; a date is taken by the answer's own `Date`."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            found = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if math.isfinite(found) and found >= 0:
            return found
    try:
        gap = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, gap.total_seconds())
