"""Load reports of nodes.

A report comes from another machine, so its size and every value in it are bounded. It contains only durations.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_REPORT_BYTES = 1 << 20
MAX_ADAPTERS, MAX_REPLICAS = 4096, 256

NODE_NAME = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?\Z"
NodeId = Annotated[str, Meta(pattern=NODE_NAME)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Digest = Annotated[str, Meta(min_length=71, max_length=71)]
"""'sha256:' and 64 hex digits. Used only as a key, so only the length is checked: a pattern would take 1 µs each."""
Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=1e10)]

ReplicaPhase = Literal["loading", "ready", "asleep", "draining", "unloading", "failed"]


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    device: Name
    """The node's name for it: 'cpu' or 'cuda:0'."""
    label: Annotated[str, Meta(max_length=200)] = ""
    """The product's name."""
    budget: Count
    """Bytes for models."""
    used: Count = 0
    """Bytes that models use or have reserved."""


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas of one model on one node, among which the node chooses."""

    model: Name
    revision: Annotated[str, Meta(max_length=200)] = ""
    state: ReplicaPhase
    """The state of the replica that is closest to answering."""
    ready: Annotated[int, Meta(ge=0, le=256)] = 1
    """Number of ready replicas."""
    capacity: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    """Requests that the ready replicas run at once. If none is ready, that one of them will run."""
    running: Count = 0
    waiting: Count = 0
    start_seconds: Seconds = 0.0
    """Predicted wait of a new request; 0 if it would start at once."""
    prefill_seconds: Seconds = 0.0
    """Seconds to prefill an average uncached prompt, measured on streamed answers; 0 if unknown."""
    request_seconds: Seconds = 0.0
    """Mean duration of a request, from start to end; 0 if none has ended yet."""
    token_seconds: Seconds = 0.0
    """Mean seconds per token of the answer, or of the prompt if the answer has none. 0 if unknown."""
    devices: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    node: NodeId
    boot: Annotated[int, Meta(ge=1, le=1 << 62)]
    """The node's boot number from its row in the database, which increases with each start."""
    seq: Count
    """Increases with each report of a boot."""
    uptime: Seconds
    """Uptime by the node's monotonic clock. Arrival minus uptime shows how late a report is."""
    version: Name
    address: Annotated[str, Meta(min_length=1, max_length=512)]
    """URL of its listener for the fleet."""
    devices: Annotated[tuple[DeviceReport, ...], Meta(max_length=64)] = ()
    replicas: Annotated[tuple[ReplicaReport, ...], Meta(max_length=MAX_REPLICAS)] = ()
    placed: Annotated[tuple[Digest, ...], Meta(max_length=MAX_ADAPTERS)] = ()
    """Adapters that have a place in a batch."""
    staged: Annotated[tuple[Digest, ...], Meta(max_length=MAX_ADAPTERS)] = ()
    """Adapters that are packed in host memory."""
    draining: bool = False
    certificate_seconds: Seconds | None = None
    """Seconds until its certificate expires; None from an older version."""
    clock_offset: Annotated[float, Meta(ge=-1e10, le=1e10)] | None = None
    """Seconds by which its clock is ahead of the database's; None from an older version."""


_DECODER = msgspec.json.Decoder(NodeReport)
_ENCODER = msgspec.json.Encoder()


def encode(report: NodeReport) -> bytes:
    return _ENCODER.encode(report)


def decode(data: bytes) -> NodeReport:
    """Decode a report. Raises one of `registry.base.json.NOT_JSON`."""
    return _DECODER.decode(data)
