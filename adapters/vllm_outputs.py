"""What `EngineCore` has computed leaves from the thread that computed it. For the CPU.

vLLM hands each step's tokens to a thread that sends them, which is free while a GPU computes. On a CPU the next step
has Python's lock and the core by then, and the tokens wait for both: 0.8 ms a step on two cores where the slot and
the gateway are at work, too.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from queue import Queue
from typing import Any

COORDINATOR = -1
"""Client index of what goes to vLLM's coordinator of data parallel engines."""


class Outputs:
    """Stands in for EngineCore's output queue: whoever puts something sends it, one after the other.

    A ZeroMQ socket may be used by any thread with a full fence between two of them, which the lock is. vLLM's sockets
    have no high-water mark, so no send waits for the other side.
    """

    def __init__(self, queue: Queue[Any], sockets: list[Any], coordinator: Any, encoder: Any, index: int, end: bytes):
        self._queue, self._sockets, self._coordinator, self._encoder = queue, sockets, coordinator, encoder
        self._index, self._end = index, end
        self._sending = threading.Lock()

    def put_nowait(self, output: Any) -> None:
        """Send (client index, outputs). The word that the engine is dead is the waiting thread's, which then ends."""
        if output == self._end:
            self._queue.put_nowait(output)
        else:
            self.send(output)

    def send(self, output: tuple[int, Any]) -> None:
        """To its client, now."""
        client, outputs = output
        outputs.engine_index = self._index
        socket = self._coordinator if client == COORDINATOR else self._sockets[client]
        with self._sending:
            socket.send_multipart(self._encoder.encode(outputs), copy=False)

    def forward(self) -> None:
        """Send what was put into the queue before or while this took its place, until the engine ends."""
        while (output := self._queue.get()) != self._end:
            self.send(output)
        with self._sending:
            for socket in self._sockets:
                socket.send(self._end)


def _process_output_sockets(self: Any, output_paths: list[str], coord_output_path: str | None, index: int) -> None:
    """Instead of vLLM's output thread: opens the sockets, and closes them when the engine has ended."""
    import zmq
    from vllm.utils.network_utils import make_zmq_socket
    from vllm.v1.serial_utils import MsgpackEncoder

    with ExitStack() as stack, zmq.Context() as context:

        def push(path: str, **more: Any) -> Any:  # lingers, so that the last word arrives
            return stack.enter_context(make_zmq_socket(context, path, zmq.PUSH, linger=4000, **more))

        sockets = [push(path) for path in output_paths]
        coordinator = push(coord_output_path, bind=False) if coord_output_path is not None else None
        queue, end = self.output_queue, self.ENGINE_CORE_DEAD
        self.output_queue = outputs = Outputs(queue, sockets, coordinator, MsgpackEncoder(), index, end)
        outputs.forward()


def patch(core: Any) -> None:
    """Let `EngineCoreProc` send by itself. Safe to call twice. One that has other names keeps vLLM's thread."""
    if all(hasattr(core, name) for name in ("process_output_sockets", "ENGINE_CORE_DEAD")):
        core.process_output_sockets = _process_output_sockets
