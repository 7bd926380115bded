"""A cable to a network namespace that can be cut in each direction, so that packets are sent but never received.

Not every kernel has filters, so a cut is a wrong hardware address: the sender's neighbour entry gets one that no card
has, and packets to it are dropped silently.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Self, TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
NO_CARD = "02:00:00:00:00:01"
_numbers = count()


def missing_right() -> str | None:
    """Return why this machine cannot have cables, or None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"rh-try-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    except FileNotFoundError:
        return "there is no ip: apt-get install iproute2"
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return f"no network namespace can be made: {made.stderr.strip()}" if made.returncode else None


class Cable:
    """A cable. `here` and `there` are the addresses of its ends."""

    def __init__(self) -> None:
        number = next(_numbers)
        self._name = f"rh-{os.getpid()}-{number}"
        self._own, self._other = f"rh{os.getpid() % 10**7}a{number}", f"rh{os.getpid() % 10**7}b{number}"
        net = f"10.213.{os.getpid() % 256}"
        self.here, self.there = f"{net}.{4 * number + 1}", f"{net}.{4 * number + 2}"
        _ip("netns", "add", self._name)
        _ip("link", "add", self._own, "type", "veth", "peer", "name", self._other, "netns", self._name)
        for where, card, address in ((), self._own, self.here), (("-n", self._name), self._other, self.there):
            _ip(*where, "address", "add", f"{address}/30", "dev", card)
            _ip(*where, "link", "set", card, "up")
        _ip("-n", self._name, "link", "set", "lo", "up")
        self._thread = ThreadPoolExecutor(1, initializer=_enter, initargs=(self._name,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, work: Callable[[], T]) -> T:
        """Run the work at the other end, where its processes and connections then are."""
        return self._thread.submit(work).result()

    def cut(self, *, to_there: bool = True, to_here: bool = True) -> None:
        if to_there:
            _ip("neighbour", "replace", self.there, "lladdr", NO_CARD, "nud", "permanent", "dev", self._own)
        if to_here:
            where = ("-n", self._name)
            _ip(*where, "neighbour", "replace", self.here, "lladdr", NO_CARD, "nud", "permanent", "dev", self._other)

    def mend(self) -> None:
        """Undo all cuts. Does nothing if there are none."""
        _ip("neighbour", "flush", "dev", self._own, "nud", "permanent")
        _ip("-n", self._name, "neighbour", "flush", "dev", self._other, "nud", "permanent")

    def close(self) -> None:
        """Remove the cable. End the processes at the other end first."""
        self._thread.shutdown()
        _ip("link", "delete", self._own)
        _ip("netns", "delete", self._name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _enter(name: str) -> None:
    """Move this thread into a namespace."""
    with open(f"/var/run/netns/{name}", "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
