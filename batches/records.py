"""Files, batches and lines as they are stored, free of the database. Times are seconds since the epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

CHUNK = 1000
"""Rows of one transaction: the ledger's commits wait for it."""
URLS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/rerank",
    "/v2/rerank", "/v1/audio/transcriptions", "/v1/audio/translations",
)  # fmt: skip
"""Paths that a line of a batch may name."""


class FileState(StrEnum):
    UPLOADED = "uploaded"
    """The bytes are stored; they are being checked."""
    PROCESSED = "processed"
    ERROR = "error"


class BatchState(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        return self not in UNFINISHED


UNFINISHED = (BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.CANCELLING)


class LineState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    """It has a final answer: a result, or an error with a status."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class FileRecord:
    id: str
    team: str
    name: str
    purpose: str
    size: int
    """Bytes."""
    created: float
    expires: float | None = None
    """None: never."""
    state: FileState = FileState.UPLOADED
    details: str = ""
    """The details of a check's refusal."""
    lines: int | None = None
    """Lines that the check counted; None: it is not a batch's input, or not checked yet."""
    deleted: float | None = None
    """Deleted for its team, and stored as long as a batch reads it."""
    idempotency: str = ""
    """The client's Idempotency-Key; '': it sent none."""
    body_hash: str = ""
    """SHA-256 of the file and its fields, to compare repeated calls."""


@dataclass(frozen=True, slots=True)
class BatchFault:
    """A fault of a batch or of a line in its file, as OpenAI's `errors.data` shows it."""

    code: str
    message: str
    line: int | None = None
    """Counts from 1."""
    param: str | None = None


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Lines of a batch."""

    total: int = 0
    completed: int = 0
    """Ended with a status below 400."""
    failed: int = 0
    """Ended with another status."""
    cancelled: int = 0
    expired: int = 0

    @property
    def left(self) -> int:
        """Lines that wait or run."""
        return self.total - self.completed - self.failed - self.cancelled - self.expired


@dataclass(frozen=True, slots=True)
class LineUsage:
    """Tokens of final answers."""

    input: int = 0
    cached: int = 0
    """Part of `input`."""
    output: int = 0
    reasoning: int = 0
    """Part of `output`."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected end of a batch. Times are seconds since the epoch."""

    made: float
    early: float
    likely: float
    late: float


@dataclass(frozen=True, slots=True)
class BatchRecord:
    id: str
    team: str
    key: str
    """Id of the key that created it; '': it came without one."""
    surface: str
    """API that created it: openai, anthropic or roundhouse."""
    endpoint: str
    """Path that each line is a request to."""
    input_file: str
    created: float
    window: int
    """Seconds from its creation until it expires."""
    state: BatchState = BatchState.VALIDATING
    priority: int = 1
    """Order among the team's own batches: 0 low, 1 normal, 2 high."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each name in the file at the batch's creation."""
    idempotency: str = ""
    """The client's Idempotency-Key; '': it sent none."""
    body_hash: str = ""
    """SHA-256 of the creating body, to compare repeated calls."""
    started: float | None = None
    cancelling: float | None = None
    ended: float | None = None
    deleted: float | None = None
    counts: LineCounts = LineCounts()
    usage: LineUsage = LineUsage()
    output_bytes: int = 0
    faults: tuple[BatchFault, ...] = ()
    """The first ones."""
    fault_count: int = 0
    """All of them."""
    waits: str = ""
    """Why no line runs, in words; '': they run, or only wait for a turn."""
    waits_until: float | None = None
    forecast: Forecast | None = None
    """The newest one; None: nothing is known of its models yet."""
    first_forecast: Forecast | None = None
    tenth_forecast: Forecast | None = None
    """The first one after a tenth of its lines had ended."""
    validator: str = ""
    """Id of the server that validates it."""
    callback: str = ""
    """URL that is called when it ends; '': none of its own."""
    output_seconds: int | None = None
    """Time for which answers are stored after the batch ended; None: the usual time."""
    queued: Mapping[str, int] = field(default_factory=dict)
    """Input tokens of its lines by name, estimated."""

    @property
    def deadline(self) -> float:
        return self.created + self.window

    @property
    def slack(self) -> float | None:
        """Part of its window that the forecast leaves; None: there is no forecast, or it has ended."""
        if self.forecast is None or self.state.is_final:
            return None
        return (self.deadline - self.forecast.likely) / self.window

    @property
    def is_late(self) -> bool:
        """Whether its forecast, or its end, is beyond its window."""
        if self.state.is_final:
            return self.ended is not None and self.ended > self.deadline
        return self.forecast is not None and self.forecast.likely > self.deadline


@dataclass(frozen=True, slots=True)
class NewLine:
    """A line of the input file."""

    number: int
    """Counts from 0, without blank lines."""
    custom_id: str
    model: str
    """Name that its body asks for; '': none that can be read."""
    offset: int
    length: int
    """Bytes of the request's body within the input file."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line's state. Its request is in the input file."""

    batch: str
    number: int
    custom_id: str
    model: str
    offset: int
    length: int
    state: LineState = LineState.WAITING
    attempts: int = 0
    """Attempts that reached an engine and count."""
    deaths: int = 0
    """Engines that died while it ran."""
    ready: float = 0.0
    """Time before which it waits."""
    epoch: int | None = None
    """Epoch of the runner that runs it."""
    uid: str | None = None
    """Row of the ledger that it ended with."""
    status: int | None = None
    code: str = ""
    """The error's code; '': there is none."""
    request: str = ""
    """X-Request-Id of its last attempt."""
    served: str = ""
    """`model@revision` that answered."""
    adapter: str = ""
    """`name@sha256:…` of the adapter that answered; '': the base did."""
    result: bytes | None = field(default=None, repr=False)
    """Body of the answer."""


@dataclass(frozen=True, slots=True)
class LineEnd:
    """The end of one attempt at a line."""

    status: int | None
    """None: it was stopped before there was an answer."""
    code: str = ""
    body: bytes = field(default=b"", repr=False)
    request: str = ""
    served: str = ""
    adapter: str = ""
    usage: LineUsage = LineUsage()
    retry_after: float | None = None
    reached_engine: bool = True
    """It had a turn: False for a refusal, for a wait that ended in the queue, and for a turn that it gave up."""


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line's state after an attempt."""

    state: LineState
    """ENDED or WAITING."""
    end: LineEnd
    attempts: int
    deaths: int
    ready: float = 0.0
