"""Frames between the gateway and a slot: a length prefix, then a msgpack list.

All frames that one side produces within a tick of its event loop are sent in one message, so a step of a chat engine
with 64 streams is one message, not 64. Only large contents are split. Nothing is ever unpickled. Unknown tags and
oversized messages end the connection.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Self, TypeVar

import msgspec

from models.messages import AdapterRef, Event, LoadResult, MemoryFootprint, Message, Progress
from registry.errors import EngineFailed, RoundhouseError, by_status


def socket_path(run_dir: str, slot_id: int) -> str:
    return f"{run_dir}/slot-{slot_id}.sock"


T = TypeVar("T")
M = TypeVar("M", bound=Message)
_encoder = msgspec.msgpack.Encoder()
LENGTH = struct.Struct("<I")
MAX_MESSAGE = 256 * 1024 * 1024
"""Largest message in bytes; we never send a larger one."""
FLUSH_BYTES = 16 * 1024 * 1024
"""Size in bytes beyond which no further frame is added to a message."""


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A frame. `uid` identifies its call; unique per connection, never reused."""

    uid: int


# --- gateway to slot -----------------------------------------------------------------------------------------------
class Load(Frame, frozen=True):
    recipe: bytes
    """The recipe as JSON."""
    path: str
    device: str
    visible: str = ""
    """Comma-separated UUIDs of the GPUs that the engine may see; '' for those that the server sees."""
    cores: tuple[int, ...] = ()
    """The cores of an engine that uses part of a CPU; empty for all."""


class Call(Frame, frozen=True):
    request: msgspec.Raw
    """A message of the task of the slot's model, from `models.tasks`."""
    request_id: str = ""
    """The client's or ours, for the slot's log. Several calls may have the same."""

    @classmethod
    def of(cls, uid: int, request: Message, request_id: str = "") -> Self:
        return cls(uid, msgspec.Raw(_encoder.encode(request)), request_id)

    def decoded(self, kind: type[M]) -> M:
        """Decode the request. Raises EngineFailed if it is of another kind."""
        try:
            return msgspec.msgpack.decode(self.request, type=kind)
        except msgspec.ValidationError as error:
            raise EngineFailed(f"The engine takes a {kind.__name__}: {error}.") from None


class Stage(Frame, frozen=True):
    adapter: AdapterRef


class Place(Frame, frozen=True):
    adapter: AdapterRef
    evict: str | None


class Drop(Frame, frozen=True):
    digest: str


class Cancel(Frame, frozen=True):
    """Stop the work of `uid`; no more frames for it are expected."""


class Ping(Frame, frozen=True):
    """Heartbeat, answered once the engine's inner loop has answered."""


class Prewarm(Frame, frozen=True):
    """Import an engine's libraries before it is known which model will be loaded."""

    engine: str


class Sleep(Frame, frozen=True):
    """Release the device memory."""


class Wake(Frame, frozen=True):
    """Wake up from sleep."""


class Count(Frame, frozen=True):
    """Return the engine's own metrics as Prometheus text in `CallDone`, possibly empty."""


ToSlot = Load | Call | Stage | Place | Drop | Cancel | Ping | Prewarm | Sleep | Wake | Count


# --- slot to gateway -----------------------------------------------------------------------------------------------
class Hello(Frame, frozen=True):
    """The first frame on a connection; `uid` is 0."""

    pid: int
    warms: str | None = None
    """The engine whose libraries it has started to import by itself."""


class Report(Frame, frozen=True):
    progress: Progress


class Emit(Frame, frozen=True):
    event: Event
    tokens: tuple[int, int, int] | None = None
    """Prompt, completion and cached tokens so far, with each chunk, so that the counts survive the engine."""


class CallDone(Frame, frozen=True):
    """The call succeeded.

    After a load, a sleep or a wake it reports the memory held; after `Count`, the metrics.
    """

    loaded: LoadResult | None = None
    held: MemoryFootprint | None = None
    counted: bytes = b""


class CallFailed(Frame, frozen=True):
    """The call failed with these fields of an error from `registry.errors`."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, uid: int, error: RoundhouseError) -> "CallFailed":
        return cls(uid, error.status, error.code, error.message, error.param, error.retry_after)

    def error(self) -> RoundhouseError:
        """Return the error that the slot raised."""
        error = by_status(self.status)(self.message, code=self.code, param=self.param)
        error.retry_after = self.retry_after
        return error


class EngineBroken(CallFailed, frozen=True):
    """The engine has ended and will answer no call, so its slot must be ended. `uid` is 0."""


FromSlot = Hello | Report | Emit | CallDone | CallFailed | EngineBroken

to_slot_decoder = msgspec.msgpack.Decoder(list[ToSlot])
from_slot_decoder = msgspec.msgpack.Decoder(list[FromSlot])


async def read_frames(reader: asyncio.StreamReader, decoder: "msgspec.msgpack.Decoder[list[T]]") -> list[T]:
    """Read the frames of one message. Raises IncompleteReadError or ConnectionError."""
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if size > MAX_MESSAGE:
        raise ConnectionError(f"a message of {size} bytes is over the limit of {MAX_MESSAGE}")
    try:
        return decoder.decode(await reader.readexactly(size))
    except msgspec.DecodeError as error:
        raise ConnectionError(f"not a frame: {error}") from error


class Outbox:
    """Collects frames and writes them once per tick."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._frames: list[Frame] = []
        self._encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self._loop = asyncio.get_running_loop()

    def put(self, frame: Frame) -> None:
        self._frames.append(frame)
        if len(self._frames) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        frames, self._frames = self._frames, []
        if not frames or self._writer.is_closing():
            return
        message, size = list[msgspec.Raw](), 0
        for encoded in map(self._encode, frames):
            if message and size + len(encoded) > FLUSH_BYTES:
                self._write(message)
                message, size = [], 0
            message.append(msgspec.Raw(encoded))
            size += len(encoded)
        self._write(message)

    def _write(self, message: list[msgspec.Raw]) -> None:
        body = self._encode(message)
        self._writer.write(LENGTH.pack(len(body)) + body)
