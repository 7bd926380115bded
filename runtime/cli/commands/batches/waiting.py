"""Follow a batch until it ends, with a progress bar, rate and remaining time."""

import time
from contextlib import suppress

from runtime.cli.failures import ServerError, ServerUnreachableError
from runtime.cli.remote.client import Client, Json, part
from runtime.cli.remote.progress import Bar, bar

BATCHES = "/v1/batches"
FINAL = ("completed", "failed", "expired", "cancelled")
LEAST_POLL, MOST_POLL = 0.25, 5.0
"""Seconds between polls, which grow with the time waited."""
PATIENCE_SECONDS = 600.0
"""Longest time that a server may be unreachable, for example while it restarts."""


def follow(client: Client, batch_id: str, *, drawn: bool) -> Json:
    """Wait for the end of a batch, also across a restart of the server. Raises RefusedError or ServerError."""
    path, begun = f"{BATCHES}/{part(batch_id)}", time.monotonic()
    with bar(drawn) as progress_bar:
        rate = _Rate()
        seen = time.monotonic()
        while True:
            waited = time.monotonic() - begun
            try:
                batch = client.get(path)
            except (ServerUnreachableError, ServerError):
                if time.monotonic() - seen > PATIENCE_SECONDS:
                    raise
                progress_bar.show("waiting for the server", 0.0)
            else:
                seen = time.monotonic()
                if batch["status"] in FINAL:
                    return batch
                _draw(progress_bar, batch, rate)
            time.sleep(min(MOST_POLL, max(LEAST_POLL, waited / 20)))


class _Rate:
    """Lines per second since the first poll."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def add(self, done: int) -> float | None:
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
            return None
        start, before = self._first
        return (done - before) / (now - start) if now > start and done > before else None


def _draw(progress_bar: Bar, batch: Json, rate: _Rate) -> None:
    counts = batch["request_counts"]
    done, total = counts["completed"] + counts["failed"], counts["total"]
    words = [f"{batch['status'].replace('_', ' ')}: {done} of {total} lines"]
    if (speed := rate.add(done)) is not None:
        words.append(f"{speed:.1f}/s")
    more = dict(batch.get("roundhouse") or {})
    if forecast := more.get("forecast"):
        words.append(f"about {duration(forecast['likely'] - time.time())} left")
    elif speed is not None:
        words.append(f"about {duration((total - done) / speed)} left")
    if more.get("late"):
        words.append("after the end of its window")
    if speed is None and (waits := more.get("waits")):
        words.append(str(waits))
    with suppress(ValueError):  # the terminal was closed
        progress_bar.show(", ".join(words), done / total if total else 0.0)


def duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
