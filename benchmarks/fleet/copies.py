"""An adapter of 46 MB from one node to another over 1 Gbit/s: a link between two network namespaces, shaped by tc.

Needs root, `ip` and `tc`. Without them a note says that the part was left out.
"""

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.adapters.pair import register
from benchmarks.fleet.servers import ScriptedNode, database, node_options, wait_until
from benchmarks.harness import Bench
from benchmarks.models import wide_chat
from benchmarks.report.generated import size, write_adapters

SPACE, NEAR, FAR = "roundhouse-bench", "10.213.0.1", "10.213.0.2"
LINKS = ("rh-bench-0", "rh-bench-1")
BITS = 1_000_000_000
LOOK_SECONDS, WITHIN_SECONDS = 0.002, 60.0
PART = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class FarNode(ScriptedNode):
    """A node in the other namespace. Only its port for the fleet is reachable from here."""

    def command(self) -> Sequence[str]:
        return ["ip", "netns", "exec", SPACE, *super().command()]

    def _wait(self) -> None:
        """Skip the wait: the near node reports when this one is up."""

    def prepare(self) -> None:
        """Load no models."""


async def run(bench: Bench) -> None:
    try:
        with _link():
            await asyncio.to_thread(_measure, bench)
    except (OSError, subprocess.CalledProcessError) as error:
        cause = getattr(error, "stderr", "") or error
        bench.note(f"an adapter from a peer was not measured: cannot create a shaped link ({cause})".strip())


def _measure(bench: Bench) -> None:
    s = bench.settings
    folder = s.work / "copies"
    model = wide_chat(s, folder, device=4, host=16)
    files = write_adapters(folder, model.path, s.pick(6, 3, 1), s.pick(256, 256, 8))
    with database(folder) as url, ExitStack() as stack:
        options = node_options(1)
        near = stack.enter_context(ScriptedNode("near", folder, url, [model.file], *options, host=NEAR))
        far = stack.enter_context(FarNode("far", folder, url, [model.file], *options, host=FAR))
        wait_until(lambda: near.states().get("far") == "up", f"the far node is not up: {far.tail()}")
        stores = [server.folder / "data" / "store" for server in (near, far)]
        wires, stagings, copies = [], [], []
        with ThreadPoolExecutor(2) as threads:
            for number, file in enumerate(files):
                looks = [threads.submit(_appears, store, number + 1) for store in stores]
                register(near, f"wide-{number}", file)
                begun, ended = (look.result() for look in looks)
                copies.append(ended - begun)
                wires.append(size(file) * 8 / BITS)
                stagings.append(_staging(file / "adapter_model.safetensors", folder / "staged"))
    bench.note(f"an adapter of {size(files[0]) / 1e6:.1f} MB, over {BITS / 1e9:g} Gbit/s")
    bench.figure("copy.seconds", copies, "s")
    bench.figure("copy.wire", wires, "s")
    bench.figure("copy.staging", stagings, "s")
    bench.figure(
        "copy.over_wire_and_staging", [c / (w + t) for c, w, t in zip(copies, wires, stagings, strict=True)], "x"
    )


def _appears(store: Path, count: int) -> float:
    """Wait until the store has `count` adapters; returns when it was. Raises TimeoutError."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while time.monotonic() < deadline:
        if store.is_dir() and sum(_DIGEST.match(name) is not None for name in os.listdir(store)) >= count:
            return time.monotonic()
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"{store} has fewer than {count} adapters after {WITHIN_SECONDS:.0f} s")


def _staging(file: Path, target: Path) -> float:
    """Return the seconds to hash these bytes and write them to the disk part by part, as a copy does."""
    began, digest = time.perf_counter(), hashlib.sha256()
    with file.open("rb") as source, target.open("wb") as out:
        while part := source.read(PART):
            digest.update(part)
            out.write(part)
        out.flush()
        os.fsync(out.fileno())
    return time.perf_counter() - began


@contextmanager
def _link() -> Iterator[None]:
    """Create a shaped link between this namespace and SPACE. Raises OSError or CalledProcessError if it cannot."""
    near, far = LINKS
    if shutil.which("ip") is None or shutil.which("tc") is None:
        raise OSError("apt-get install iproute2")
    shape = ["root", "tbf", "rate", f"{BITS}", "burst", "1mb", "latency", "50ms"]
    commands = [
        ["ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", SPACE],
        ["ip", "addr", "add", f"{NEAR}/30", "dev", near],
        ["ip", "link", "set", near, "up"],
        ["ip", "-n", SPACE, "addr", "add", f"{FAR}/30", "dev", far],
        ["ip", "-n", SPACE, "link", "set", far, "up"],
        ["ip", "-n", SPACE, "link", "set", "lo", "up"],
        ["tc", "qdisc", "add", "dev", near, *shape],
        ["ip", "netns", "exec", SPACE, "tc", "qdisc", "add", "dev", far, *shape],
    ]
    _call(["ip", "netns", "add", SPACE])
    try:
        for command in commands:
            _call(command)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", SPACE], check=False)


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
