"""Files, batches and lines as they are stored. Imports no database. Times are seconds since the epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

CHUNK = 1000
"""Rows per transaction, kept small because the ledger's commits wait for it."""
URLS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/rerank",
    "/v2/rerank", "/v1/audio/transcriptions", "/v1/audio/translations",
)  # fmt: skip
"""Paths that lines of a batch may name."""
ADAPTER = " adapter_id="
"""Stands between model and adapter in the name of a line whose body has both, since no name contains a space."""


CUSTOM_ID_LETTERS = 512
"""Longest custom_id of a line, in characters."""


class FileState(StrEnum):
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
    """None for never."""
    state: FileState = FileState.PROCESSED
    details: str = ""
    """Why the check refused the file."""
    lines: int | None = None
    """Lines that the check counted. None if it is not a batch's input or not checked yet."""
    deleted: float | None = None
    """Time when its team deleted it. It stays stored while a batch reads it."""
    idempotency: str = ""
    """The client's Idempotency-Key, or ''."""
    body_hash: str = ""
    """SHA-256 of the file and its fields, to recognise repeated calls."""


@dataclass(frozen=True, slots=True)
class BatchFault:
    """A fault of a batch or of a line in its file, as OpenAI's `errors.data` shows it."""

    code: str
    message: str
    line: int | None = None
    """Line number, from 1."""
    param: str | None = None


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Numbers of lines of a batch."""

    total: int = 0
    completed: int = 0
    """Lines that ended with a status below 400."""
    failed: int = 0
    """Lines that ended otherwise."""
    cancelled: int = 0
    expired: int = 0

    @property
    def left(self) -> int:
        """Lines that are waiting or running."""
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
    """Id of the key that created it. '' without a key."""
    surface: str
    """API that created it: openai, anthropic or roundhouse."""
    endpoint: str
    """Path to which each line is a request."""
    input_file: str
    created: float
    window: int
    """Seconds from its creation until it expires."""
    state: BatchState = BatchState.VALIDATING
    priority: int = 1
    """Order among the team's own batches: 0 low, 1 normal, 2 high."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each name in the file when the batch was created."""
    idempotency: str = ""
    """The client's Idempotency-Key, or ''."""
    body_hash: str = ""
    """SHA-256 of the creating body, to recognise repeated calls."""
    started: float | None = None
    cancelling: float | None = None
    ended: float | None = None
    deleted: float | None = None
    counts: LineCounts = LineCounts()
    usage: LineUsage = LineUsage()
    output_bytes: int = 0
    faults: tuple[BatchFault, ...] = ()
    """The first faults."""
    fault_count: int = 0
    """The number of all faults."""
    waits: str = ""
    """Why no line runs, in words. '' if lines run or only wait for their turn."""
    waits_until: float | None = None
    forecast: Forecast | None = None
    """The latest forecast. None if nothing is known about its models yet."""
    first_forecast: Forecast | None = None
    tenth_forecast: Forecast | None = None
    """The first forecast after a tenth of its lines had ended."""
    validator: str = ""
    """Id of the server that validates it."""
    callback: str = ""
    """URL to call when it ends. '' if it has none of its own."""
    output_seconds: int | None = None
    """Seconds for which answers are stored after the batch ended. None for the default."""
    queued: Mapping[str, int] = field(default_factory=dict)
    """Estimated input tokens of its lines, by model name."""

    @property
    def deadline(self) -> float:
        return self.created + self.window

    @property
    def slack(self) -> float | None:
        """Fraction of its window that the forecast leaves. None if there is no forecast or it has ended."""
        if self.forecast is None or self.state.is_final:
            return None
        return (self.deadline - self.forecast.likely) / self.window

    @property
    def is_late(self) -> bool:
        """Whether it ended, or is expected to end, after its window."""
        if self.state.is_final:
            return self.ended is not None and self.ended > self.deadline
        return self.forecast is not None and self.forecast.likely > self.deadline


@dataclass(frozen=True, slots=True)
class NewLine:
    """A line of the input file."""

    number: int
    """Counted from 0, without blank lines."""
    custom_id: str
    model: str
    """Model name in its body. '' if none can be read."""
    offset: int
    length: int
    """Bytes of the request's body within the input file."""


@dataclass(frozen=True, slots=True)
class Line:
    """The state of a line. Its request is in the input file."""

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
    """Number of engines that died while it ran."""
    ready: float = 0.0
    """Time until which it waits."""
    epoch: int | None = None
    """Epoch of the runner that runs it."""
    uid: str | None = None
    """Uid of the ledger row that it ended with."""
    status: int | None = None
    code: str = ""
    """The error code, or ''."""
    request: str = ""
    """X-Request-Id of its last attempt."""
    served: str = ""
    """`model@revision` that answered."""
    adapter: str = ""
    """`name@sha256:…` of the adapter that answered. '' for the base model."""
    result: bytes | None = field(default=None, repr=False)
    """Body of the answer."""


@dataclass(frozen=True, slots=True)
class LineEnd:
    """The end of one attempt at a line."""

    status: int | None
    """None if it was stopped before there was an answer."""
    code: str = ""
    body: bytes = field(default=b"", repr=False)
    request: str = ""
    served: str = ""
    adapter: str = ""
    usage: LineUsage = LineUsage()
    retry_after: float | None = None
    reached_engine: bool = True
    """False if it was refused, gave up its turn, or ended while still queued."""


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line's state after an attempt."""

    state: LineState
    """ENDED or WAITING."""
    end: LineEnd
    attempts: int
    deaths: int
    ready: float = 0.0
