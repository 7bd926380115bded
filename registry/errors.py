"""The tree of all errors that reach a client.

RoundhouseError
├── BadRequest 400                the body or a parameter is wrong
│   └── ContextLengthExceeded 400 more tokens than the model takes
├── Unauthorized 401              a key is missing, wrong, expired or revoked
├── Forbidden 403                 a refused host or web page; the key lacks a scope or model
├── NotFound 404                  no such model, adapter, version or alias
├── MethodNotAllowed 405          the path has no such method
├── RequestTimedOut 408           the body did not arrive in time
├── Conflict 409                  the state does not allow it (leased, aliased, pinned, exists)
│   └── FinalConflict 409         as above, and repeating the same call can never succeed
├── TooLarge 413                  body, audio or archive over a stated limit
├── UnsupportedMedia 415          a body that is not JSON
├── Misdirected 421               meant for another server of the fleet; the sender tries elsewhere
├── Unfit 422                     an adapter or recipe was read and refused; `faults` lists every reason
├── QueueFull 429                 a bounded queue is full; Retry-After says when to come back
│   └── Unreachable 429           the request would start after its own deadline; see `predicted_wait_seconds`
├── LimitExceeded 429             a limit of the team or key is exhausted; `limits` lists every such limit
│   ├── BudgetExceeded 429        a budget is spent until its day or month ends
│   └── StorageExceeded 429       the limit on stored adapters is reached until some are removed
├── HeadersTooLarge 431           request line and headers over a stated limit
├── EngineFailed 500              the engine itself failed while it answered
├── UnsupportedCoding 501         a transfer coding other than chunked
├── Unavailable 503               temporarily unavailable (loading, draining, restarting); see Retry-After
│   ├── DoesNotFit 503            the model cannot start under the current memory budget
│   └── NodeFailed 503            another server of the fleet cannot be reached, or broke off
├── DeadlineExceeded 504          the request's own deadline has passed
├── StorageFull 507               the disk, or the space for files, is full; nothing was stored
└── ProviderFailed 502            a provider failed, or its answer is invalid
    ├── ProviderBusy 429          it accepts no more requests now; Retry-After is the provider's own
    ├── ProviderOverloaded 503    it is overloaded or unreachable for now
    ├── ProviderWithoutBatches 400  its document excludes it from batches
    └── ProviderTimedOut 504      it was silent for longer than its recipe allows

`status`, `type` and `code` follow OpenAI. runtime/http/errors.py turns them into each dialect's body.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LONGEST = 3_500
"""Longest message, in bytes. It may quote the request, and is sent back."""

_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters except line breaks and tabs, and lone surrogates."""


def short(text: str, most: int = LONGEST) -> str:
    """Cut the text to `most` bytes, and replace characters that JSON escapes badly or not at all."""
    plain = _ODD.sub("\ufffd", text[: most + 1])
    raw = plain.encode()
    return plain if len(raw) <= most else raw[: most - 3].decode(errors="ignore") + "…"


class RoundhouseError(Exception):
    """An error with an HTTP status and a message that tells the client what to do.

    Args:
        message: what is wrong and what to do about it, in one or two sentences.
        code: a stable machine-readable word; defaults to the class's own.
        param: the request field at fault, as a JSON path.
        retry_after: seconds after which a retry makes sense; None if unknown.
    """

    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"
    should_retry: bool = True
    """False tells clients not to retry, which many would do by themselves at this status."""

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, retry_after: float | None = None
    ) -> None:
        message = short(message)
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param and short(param, 200)
        self.retry_after = retry_after


class BadRequest(RoundhouseError):
    status, type, code = 400, "invalid_request_error", "invalid_value"


class ContextLengthExceeded(BadRequest):
    code = "context_length_exceeded"


class Unauthorized(RoundhouseError):
    status, type, code = 401, "invalid_request_error", "invalid_api_key"


class Forbidden(RoundhouseError):
    status, type, code = 403, "permission_error", "forbidden"


class NotFound(RoundhouseError):
    status, type, code = 404, "invalid_request_error", "model_not_found"


class MethodNotAllowed(RoundhouseError):
    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class RequestTimedOut(RoundhouseError):
    status, type, code = 408, "timeout_error", "request_timeout"


class Conflict(RoundhouseError):
    status, type, code = 409, "conflict_error", "conflict"


class FinalConflict(Conflict):
    should_retry = False


class TooLarge(RoundhouseError):
    status, type, code = 413, "invalid_request_error", "payload_too_large"


class UnsupportedMedia(RoundhouseError):
    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class Misdirected(RoundhouseError):
    status, type, code, should_retry = 421, "invalid_request_error", "misdirected_request", False


class Unfit(RoundhouseError):
    """Input that was read and refused. `faults` holds every reason, one sentence each."""

    status, type, code = 422, "invalid_request_error", "unfit"

    def __init__(
        self, message: str, faults: Sequence[str] = (), *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.faults = tuple(faults)


class QueueFull(RoundhouseError):
    status, type, code = 429, "rate_limit_error", "queue_full"


class Unreachable(QueueFull):
    code = "deadline_unreachable"

    def __init__(self, message: str, predicted_wait_seconds: float, *, retry_after: float) -> None:
        super().__init__(message, retry_after=retry_after)
        self.predicted_wait_seconds = predicted_wait_seconds


@dataclass(frozen=True, slots=True)
class Refusal:
    """An exhausted limit, in users' units.

    seconds: until the limit has room again; None if time alone will not free any.
    """

    limit_id: str
    kind: str
    owner: str
    subject: str
    limit: float
    remaining: float
    seconds: float | None
    reason: str


class LimitExceeded(RoundhouseError):
    """A limit of the team or key is exhausted. `should_retry`: whether a retry after `retry_after` may succeed.

    `levels`: for each kind of limit: the limit, what remains, and seconds until it is fully available.
    """

    status, type, code = 429, "requests", "rate_limit_exceeded"

    def __init__(self, message: str, binding: Sequence[Refusal], *, retry_after: float | None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.binding = tuple(binding)
        self.levels: Mapping[str, tuple[int, int, float]] = {}


class BudgetExceeded(LimitExceeded):
    type, code = "insufficient_quota", "project_spend_limit_exceeded"


class StorageExceeded(LimitExceeded):
    type, code = "insufficient_quota", "storage_limit_exceeded"

    def __init__(self, message: str, binding: Sequence[Refusal]) -> None:
        super().__init__(message, binding, retry_after=None)
        self.should_retry = False


class HeadersTooLarge(RoundhouseError):
    status, type, code = 431, "invalid_request_error", "headers_too_large"


class EngineFailed(RoundhouseError):
    status, type, code = 500, "server_error", "engine_failed"


class UnsupportedCoding(RoundhouseError):
    status, type, code = 501, "invalid_request_error", "unsupported_transfer_coding"


class Unavailable(RoundhouseError):
    status, type, code = 503, "service_unavailable_error", "model_unavailable"


class DoesNotFit(Unavailable):
    code, should_retry = "insufficient_memory", False


class NodeFailed(Unavailable):
    """Another server of the fleet failed. again: nothing was passed on, so another server may be tried."""

    code = "node_failed"

    def __init__(self, message: str, *, retry_after: float | None = None, again: bool = False) -> None:
        super().__init__(message, retry_after=retry_after)
        self.again = again


class DeadlineExceeded(RoundhouseError):
    status, type, code = 504, "timeout_error", "deadline_exceeded"


class StorageFull(RoundhouseError):
    status, type, code, should_retry = 507, "insufficient_storage_error", "insufficient_storage", False


class ProviderFailed(RoundhouseError):
    """A provider failed. again: a retry may help. counts: whether the circuit breaker counts it."""

    status, type, code = 502, "server_error", "provider_failed"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after: float | None = None,
        again: bool = False,
        counts: bool = True,
    ) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.again, self.counts = again, counts
        self.should_retry = again or counts or retry_after is not None  # else the operator has to act first


class ProviderBusy(ProviderFailed):
    status, type, code = 429, "rate_limit_error", "provider_busy"


class ProviderOverloaded(ProviderFailed):
    status, type, code = 503, "service_unavailable_error", "provider_overloaded"


class ProviderWithoutBatches(ProviderFailed):
    """The provider takes no batch lines; a router may have another target."""

    status, type, code = 400, "invalid_request_error", "provider_without_batches"

    def __init__(self, message: str) -> None:
        super().__init__(message, counts=False)


class ProviderTimedOut(ProviderFailed):
    status, type, code = 504, "timeout_error", "provider_timeout"


def by_status(status: int) -> type[RoundhouseError]:
    """Return the class for a status that a slot sent over the wire."""
    classes: tuple[type[RoundhouseError], ...] = (
        BadRequest, NotFound, RequestTimedOut, Conflict, TooLarge, Unfit, QueueFull, EngineFailed, Unavailable,
        DeadlineExceeded,
    )  # fmt: skip
    return next((c for c in classes if c.status == status), EngineFailed if status >= 500 else BadRequest)
