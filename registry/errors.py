"""The one tree of errors that reach a client.

RoundhouseError
├── BadRequest 400                the body or a parameter is wrong
│   └── ContextLengthExceeded 400 more tokens than the model takes
├── Unauthorized 401              a key is missing, wrong, expired or revoked
├── Forbidden 403                 a refused host or web page; the key lacks a scope or model
├── NotFound 404                  no such model, adapter, version or alias
├── MethodNotAllowed 405          the path has no such method
├── RequestTimedOut 408           the body did not arrive in time
├── Conflict 409                  the state does not allow it (leased, aliased, pinned, exists)
│   └── FinalConflict 409         and never will: the same call again fails, too
├── TooLarge 413                  body, audio or archive over a stated limit
├── UnsupportedMedia 415          a body that is not JSON
├── Misdirected 421               another server of the fleet was meant; the one that sent it tries elsewhere
├── Unfit 422                     an adapter or recipe that was read and refused; `faults` lists every reason
├── QueueFull 429                 a bounded queue is full; Retry-After says when to come back
│   └── Unreachable 429           it would start after its own deadline; `predicted_wait_seconds` says when
├── LimitExceeded 429             a limit of the team or the key has no room; `limits` lists every one
│   ├── BudgetExceeded 429        one of money has none until its day or month ends
│   └── StorageExceeded 429       one of stored adapters has none until some are removed
├── HeadersTooLarge 431           request line and headers over a stated limit
├── EngineFailed 500              the engine itself broke while it answered
├── UnsupportedCoding 501         a transfer coding other than chunked
├── Unavailable 503               not now: loading, draining, restarting; Retry-After says when
│   ├── DoesNotFit 503            the model can never start under the present budget
│   └── NodeFailed 503            another server of the fleet cannot be reached, or broke off
├── DeadlineExceeded 504          the request's own deadline has passed
├── StorageFull 507               the disk, or the space for files, is full; nothing was stored
└── ProviderFailed 502            a provider failed, or its answer is invalid
    ├── ProviderBusy 429          it takes no more requests now; Retry-After is its own
    ├── ProviderOverloaded 503    it, or the way to it, is out of order for now
    ├── ProviderWithoutBatches 400  its document refuses lines of batches
    └── ProviderTimedOut 504      it was silent for longer than its recipe allows

`status`, `type` and `code` are OpenAI's words. runtime/http/errors.py turns them into each dialect's body.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LONGEST = 3_500
"""Bytes of a message: it may quote what was sent, and is sent back."""

_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters but line breaks and tabs, and halves of characters."""


def short(text: str, most: int = LONGEST) -> str:
    """Cut the text to so many bytes, without what JSON escapes badly or not at all."""
    plain = _ODD.sub("\ufffd", text[: most + 1])
    raw = plain.encode()
    return plain if len(raw) <= most else raw[: most - 3].decode(errors="ignore") + "…"


class RoundhouseError(Exception):
    """An error with an HTTP status and a message that tells the client what to do.

    Args:
        message: one or two sentences: what is wrong, and what to do about it.
        code: a stable machine-readable word; the class's own when left out.
        param: the request field that is at fault, as a JSON path.
        retry_after: seconds after which another try makes sense; None: no such time is known.
    """

    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"
    should_retry: bool = True
    """False: clients are asked not to repeat the call, which they would do by themselves at this status."""

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
    """Read and refused. `faults` holds every reason found, one sentence each."""

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
    """A limit without room, in users' units.

    seconds: until it has some; None: time alone brings none.
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
    """A limit of this team or key. `should_retry`: a try after `retry_after` may work.

    `levels`: by kind of limit, what is left: limit, remaining, seconds until all of it is there.
    """

    status, type, code = 429, "requests", "rate_limit_exceeded"

    def __init__(self, message: str, binding: Sequence[Refusal], *, retry_after: float | None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.binding = tuple(binding)
        self.should_retry = True
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
    code = "insufficient_memory"


class NodeFailed(Unavailable):
    """Another server of the fleet failed. again: nothing was passed on, so a repeat elsewhere may help."""

    code = "node_failed"

    def __init__(self, message: str, *, retry_after: float | None = None, again: bool = False) -> None:
        super().__init__(message, retry_after=retry_after)
        self.again = again


class DeadlineExceeded(RoundhouseError):
    status, type, code = 504, "timeout_error", "deadline_exceeded"


class StorageFull(RoundhouseError):
    status, type, code, should_retry = 507, "insufficient_storage_error", "insufficient_storage", False


class ProviderFailed(RoundhouseError):
    """A provider's failure. again: a repeat may help. counts: for the breaker."""

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


class ProviderBusy(ProviderFailed):
    status, type, code = 429, "rate_limit_error", "provider_busy"


class ProviderOverloaded(ProviderFailed):
    status, type, code = 503, "service_unavailable_error", "provider_overloaded"


class ProviderWithoutBatches(ProviderFailed):
    """Lines of batches may not go there; a router may have another target."""

    status, type, code = 400, "invalid_request_error", "provider_without_batches"

    def __init__(self, message: str) -> None:
        super().__init__(message, counts=False)


class ProviderTimedOut(ProviderFailed):
    status, type, code = 504, "timeout_error", "provider_timeout"


def by_status(status: int) -> type[RoundhouseError]:
    """The class that stands for a status that came over the wire from a slot."""
    classes: tuple[type[RoundhouseError], ...] = (
        BadRequest, NotFound, RequestTimedOut, Conflict, TooLarge, Unfit, QueueFull, EngineFailed, Unavailable,
        DeadlineExceeded,
    )  # fmt: skip
    return next((c for c in classes if c.status == status), EngineFailed if status >= 500 else BadRequest)
