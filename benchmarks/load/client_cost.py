"""The client itself: what it costs per event, so that every other figure can be judged.

A second process answers 1, 16 and 64 connections with a canned stream (the size of vLLM's chunks, one write per event,
as fast as it can). Measures this process's CPU microseconds per event, and how many events a second it receives.

Physical limit: one read from the kernel (some 3 µs) and one pass over some 200 bytes per event; less where one read
brings several events. The client does not distort a measurement if this figure times the cell's tokens a second is far
below one core; `client_cpu_per_1000_tokens` has the cell's actual cost.
"""

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection as Pipe

from benchmarks.harness import Bench
from benchmarks.load.client import Reply, connect, request_bytes
from benchmarks.load.clients import TIMEOUT, Cell

EVENTS = 200
_CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]}\n\n'
)


async def run(bench: Bench) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_canned, args=(theirs,), daemon=True)
    process.start()
    try:
        port = int(await asyncio.to_thread(ours.recv))
        for level in (1, 16, 64):
            await _level(bench, port, level)
    finally:
        process.kill()
        process.join()
    bench.bar("client CPU per event, 16 connections", "c16.cpu_per_event", "<=", 50.0)


async def _level(bench: Bench, port: int, level: int) -> None:
    each, rates = [], []
    for _ in range(bench.settings.rounds):
        connections = await asyncio.gather(*(connect(port) for _ in range(level)))
        replies: list[Reply] = []
        own, began = time.process_time(), time.perf_counter()
        for _ in range(bench.settings.pick(20, 10, 1)):
            replies += await asyncio.gather(*(c.ask(request_bytes("/", {}), TIMEOUT) for c in connections))
        own, wall = time.process_time() - own, time.perf_counter() - began
        for connection in connections:
            connection.close()
        bench.count(f"c{level}", Cell(replies, wall, 0.0, own))
        events = sum(reply.events for reply in replies)
        each.append(own / events * 1e6)
        rates.append(events / wall)
    bench.figure(f"c{level}.cpu_per_event", each, "µs")
    bench.figure(f"c{level}.events_per_second", rates, "1/s")


def serve_canned(pipe: "Pipe[int, None]") -> None:
    """Send the port through the pipe, then answer every request with the same stream until killed."""
    asyncio.run(_serve(pipe))


async def _serve(pipe: "Pipe[int, None]") -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"{}")
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                for _ in range(EVENTS):
                    writer.write(b"%x\r\n%s\r\n" % (len(_CHUNK), _CHUNK))
                    await asyncio.sleep(0)
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()
