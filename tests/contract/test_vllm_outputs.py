"""EngineCore's outputs are sent by the thread that puts them, all of them, in its order; the last word comes last."""

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from adapters import vllm_outputs, vllm_plugin
from tests.contract.vllm_stock import stock

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
INDEX, PUTS = 3, 200


def _outputs(stamp: float) -> Any:
    from vllm.v1.engine import EngineCoreOutputs

    return EngineCoreOutputs(timestamp=stamp)


class _Reader:
    """The frontend's side of the sockets."""

    def __init__(self, folder: Path) -> None:
        import zmq
        from vllm.v1.engine import EngineCoreOutputs
        from vllm.v1.serial_utils import MsgpackDecoder

        self.context = zmq.Context()
        self.paths = [f"ipc://{folder}/{name}" for name in ("a", "b", "coordinator")]
        self.sockets = [self.context.socket(zmq.PULL) for _ in self.paths]
        for socket, path in zip(self.sockets, self.paths, strict=True):
            socket.bind(path)
        self._decode = MsgpackDecoder(EngineCoreOutputs).decode

    def raw(self, number: int = 0) -> list[bytes]:
        assert self.sockets[number].poll(10_000), "nothing came"
        parts: list[bytes] = self.sockets[number].recv_multipart()
        return parts

    def next(self, number: int = 0) -> Any:
        return self._decode(self.raw(number))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[_Reader]:
    reader = _Reader(tmp_path)
    yield reader
    reader.context.destroy(linger=0)


@pytest.fixture
def core() -> Any:
    from vllm.v1.engine.core import EngineCoreProc

    return SimpleNamespace(output_queue=Queue(), ENGINE_CORE_DEAD=EngineCoreProc.ENGINE_CORE_DEAD)


@pytest.fixture
def thread(core: Any, reader: _Reader) -> threading.Thread:
    process = vllm_outputs._process_output_sockets
    return threading.Thread(target=process, args=(core, reader.paths[:2], reader.paths[2], INDEX), daemon=True)


def _take_over(core: Any, thread: threading.Thread, reader: _Reader) -> None:
    """Once the first output has come, what was put before the thread began has been sent."""
    core.output_queue.put_nowait((0, _outputs(-1)))
    thread.start()
    first = reader.next()
    assert (first.timestamp, first.engine_index) == (-1, INDEX)
    assert isinstance(core.output_queue, vllm_outputs.Outputs)


def test_who_puts_sends(core: Any, thread: threading.Thread, reader: _Reader) -> None:
    queue = core.output_queue
    _take_over(core, thread, reader)
    for client in (0, 1, vllm_outputs.COORDINATOR):
        core.output_queue.put_nowait((client, _outputs(client + 10)))
        assert queue.empty(), "no other thread has a part in it"
        assert reader.next(client).timestamp == client + 10
    assert thread.is_alive()


def test_what_several_threads_put_arrives_whole(core: Any, thread: threading.Thread, reader: _Reader) -> None:
    queue = core.output_queue
    _take_over(core, thread, reader)

    def put(first: int) -> None:
        target = queue if first == 0 else core.output_queue  # one has looked the queue up before it was replaced
        for number in range(PUTS):
            target.put_nowait((0, _outputs(first + number + 1)))

    putters = [threading.Thread(target=put, args=(1000 * number,)) for number in range(3)]
    for putter in putters:
        putter.start()
    came = [int(reader.next().timestamp) for _ in range(3 * PUTS)]
    for putter in putters:
        putter.join()
    for number in range(3):
        assert [stamp % 1000 for stamp in came if stamp // 1000 == number] == list(range(1, PUTS + 1))


def test_large_parts_are_not_read_before_they_are_sent(core: Any, thread: threading.Thread, reader: _Reader) -> None:
    import numpy as np
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.outputs import LogprobsLists

    _take_over(core, thread, reader)
    for value in range(4):
        values = np.full((1, 1 << 18), value, dtype=np.float32)
        logprobs = LogprobsLists(values.astype(np.int32), values, np.zeros(1, dtype=np.int32))
        output = EngineCoreOutput("r", [value], new_logprobs=logprobs)
        core.output_queue.put_nowait((0, EngineCoreOutputs(outputs=[output])))
        del values, logprobs, output
    for value in range(4):
        came = reader.next().outputs[0].new_logprobs
        assert (came.logprobs == value).all()
        assert (came.logprob_token_ids == value).all()


def test_the_last_word_comes_last_and_ends_the_thread(core: Any, thread: threading.Thread, reader: _Reader) -> None:
    _take_over(core, thread, reader)
    core.output_queue.put_nowait((0, _outputs(1)))
    core.output_queue.put_nowait(core.ENGINE_CORE_DEAD)
    assert reader.next().timestamp == 1
    assert reader.raw(0) == reader.raw(1) == [core.ENGINE_CORE_DEAD]
    thread.join(10)
    assert not thread.is_alive()


def test_vllm_uses_its_queue_as_this_does() -> None:
    core = stock("vllm.v1.engine.core")
    names = ["self", "output_paths", "coord_output_path", "engine_index"]
    assert list(inspect.signature(core.EngineCoreProc.process_output_sockets).parameters) == names
    source = inspect.getsource(core)
    uses = source.count("self.output_queue")
    made, taken, put = (
        source.count(f"self.output_queue{how}") for how in (" = queue.Queue[", ".get()", ".put_nowait(")
    )
    assert (made, taken, put) == (1, 1, uses - 2), "it is put into only, looked up each time"
    assert "self.output_thread.join(" in source, "the last word is waited for by the thread's end"


def test_the_engine_uses_it() -> None:
    from vllm.v1.engine.core import EngineCoreProc

    vllm_plugin._patch_all()
    assert EngineCoreProc.process_output_sockets is vllm_outputs._process_output_sockets
