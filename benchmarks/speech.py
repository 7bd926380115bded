"""Speech, compared with faster-whisper's batched pipeline behind a plain FastAPI handler, with the same weights.

Measures seconds of audio per second (the inverse of the real-time factor) for one short recording alone, four at once,
and one long recording; the server's memory while the long one runs, and CPU seconds per minute of audio.

Both cut recordings into windows of the recipe's `window.seconds` (the pipeline's `chunk_length`). The pipeline always
pads each window to 30 s; the server pads it to the recipe's `window.padded`.

Physical limit: the encoder runs on a padded window whatever the recording's length, so a short recording costs a whole
window, and several recordings gain by sharing a step. For a long recording both sides batch its own windows.
"""

import asyncio
import io
import wave
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench
from benchmarks.load.client import request_bytes
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.peers import processes
from benchmarks.peers.bare import Bare, starter
from benchmarks.peers.servers import Roundhouse, Server
from benchmarks.report.environment import ROOT
from registry.recipes.loading import load_recipes

SAMPLES = ROOT / "models" / "starter" / "pack" / "samples"
BOUNDARY = "benchmark-boundary"


async def run(bench: Bench) -> None:
    result = starter("speech")
    if result is None or not samples():
        bench.note("not measured: the speech model is not in the starter pack")
        return
    await measure(bench, *result)
    bench.bar("one short recording, against bare", "alone.ratio", ">=", 1.0)
    bench.bar("four at once, against bare", "four.ratio", ">=", 1.5)


async def measure(bench: Bench, file: Path, path: Path) -> Mapping[str, Any]:
    """Compare the model of a recipe file, whose weights are in `path`, with the library on the same weights.

    Returns the loaded model's `GET /v1/models/{id}`.
    """
    s = bench.settings
    model = load_recipes(file)[0].id
    short = samples()[0].read_bytes()
    long = repeated(samples(), s.pick(3600.0, 300.0, 40.0))
    with ExitStack() as stack:
        servers: list[Server] = [
            # an hour of uncompressed audio exceeds the default limit
            stack.enter_context(Roundhouse(model, s.work / "speech", [file], "--slots", "1", "--max-audio", "256MiB")),
            stack.enter_context(Bare({"speech": path}, s.work / "speech", file)),
        ]
        view: Mapping[str, Any] = servers[0].http.get(f"/v1/models/{model}").raise_for_status().json()
        await _cell(bench, servers, "alone", short, 1, s.pick(10, 5, 1))
        await _cell(bench, servers, "four", short, 4, s.pick(20, 12, 4))
        for server in servers:
            await _long(bench, server, long)
    speeds = [bench.figures.get(f"long.{server.name}.speed") for server in servers]
    if speeds[0] and speeds[1]:
        bench.figure("long.ratio", [speeds[0].value / speeds[1].value], "x")
    return view


async def _cell(bench: Bench, servers: list[Server], label: str, audio: bytes, at_once: int, number: int) -> None:
    seconds = duration(audio)

    async def turn(server: Server, round_: int) -> Cell:
        requests = [upload(audio, server.model)] * number
        # in each round: a kernel may page out what was idle during the others' turns (`environment.pages_out`)
        await closed_loop(server, requests[: 1 if round_ else at_once], at_once)
        cell = await closed_loop(server, requests, at_once)
        bench.count(f"{label} {server.name}", cell)
        return cell

    rounds = await bench.turns(servers, turn)
    for name, cells in rounds.items():
        good = [cell for cell in cells if cell.good]
        bench.figure(f"{label}.{name}.speed", [len(c.good) * seconds / c.wall for c in good], "x real time")
        bench.figure(f"{label}.{name}.p50", [c.total_ms(50) for c in good], "ms")
        bench.figure(f"{label}.{name}.cpu_per_minute", [c.cpu / (len(c.good) * seconds / 60) for c in good], "s")
    pairs = [(a, b) for a, b in zip(*(rounds[server.name] for server in servers), strict=True) if a.good and b.good]
    bench.figure(f"{label}.ratio", [a.requests_per_second / b.requests_per_second for a, b in pairs], "x")


async def _long(bench: Bench, server: Server, audio: bytes) -> None:
    """Transcribe the long recording once, and sample the memory ten times a second to find its peak."""
    before = processes.resident(server.pid)
    peak = before
    working = asyncio.create_task(closed_loop(server, [upload(audio, server.model)], 1))
    while not working.done():
        peak = max(peak, processes.resident(server.pid))
        await asyncio.wait([working], timeout=0.1)
    cell = await working
    bench.count(f"long {server.name}", cell)
    if cell.good:
        bench.figure(f"long.{server.name}.speed", [duration(audio) / cell.wall], "x real time")
        bench.figure(f"long.{server.name}.memory_added", [(peak - before) / 2**20], "MiB")


def samples() -> list[Path]:
    """Return the recordings that ship with the starter pack."""
    return sorted(SAMPLES.glob("*.wav"))


def upload(audio: bytes, model: str) -> bytes:
    """Return a multipart request for one transcription."""
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n--{BOUNDARY}\r\n'
        'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    )
    body = head.encode() + audio + f"\r\n--{BOUNDARY}--\r\n".encode()
    return request_bytes("/v1/audio/transcriptions", body, kind=f"multipart/form-data; boundary={BOUNDARY}")


def duration(audio: bytes) -> float:
    """Return the seconds of a WAV file."""
    with wave.open(io.BytesIO(audio)) as file:
        return float(file.getnframes() / file.getframerate())


def repeated(files: list[Path], seconds: float) -> bytes:
    """Return one WAV of `seconds`: the recordings in turn, each with a second of silence after it.

    All files must have the format of the first.
    """
    made = io.BytesIO()
    with wave.open(str(files[0])) as first:
        form = first.getparams()
    with wave.open(made, "wb") as out:
        out.setparams(form)
        written, i = 0, 0
        while written < seconds * form.framerate:
            with wave.open(str(files[i % len(files)])) as file:
                out.writeframes(file.readframes(file.getnframes()) + bytes(form.sampwidth * form.framerate))
                written += file.getnframes() + form.framerate
            i += 1
    return made.getvalue()
