"""The machine's installed Prometheus, filled with a server's metrics at a few moments, to answer queries."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from models.process_control import die_with_parent
from tests.eventually import PATIENCE, eventually
from tests.system.serving import free_port

MISSING = "Prometheus is not installed: apt-get install prometheus"


def is_there() -> bool:
    return all(shutil.which(program) for program in ("prometheus", "promtool"))


class Prometheus:
    def __init__(self, http: httpx.Client, at: float) -> None:
        self._http, self._at = http, at

    def values(self, query: str) -> list[float]:
        """Return the last value of each series of the query. Fails if Prometheus answers with an error."""
        answer = self._http.get("/api/v1/query", params={"query": query, "time": str(self._at)}).json()
        assert answer["status"] == "success", f"{query}: {answer.get('error')}"
        series: list[dict[str, Any]] = answer["data"]["result"]
        return [float(item["value"][1]) for item in series]


@contextmanager
def holding(scrapes: Mapping[float, str], folder: Path) -> Iterator[Prometheus]:
    """Start Prometheus with these metrics, by time in seconds since the epoch, in its storage. It never scrapes."""
    lines = [
        f"{line} {at:.3f}"
        for at, text in sorted(scrapes.items())
        for line in text.splitlines()
        if line and not line.startswith("#")
    ]
    reported, data, config = folder / "metrics.txt", folder / "data", folder / "prometheus.yml"
    reported.write_text("\n".join((*lines, "# EOF\n")))
    config.write_text("global: {}\n")
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(reported), str(data)]
    done = subprocess.run(blocks, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}",
                f"--web.listen-address={address}",
            ],
            stdout=log, stderr=log, preexec_fn=partial(die_with_parent, os.getpid()),
        )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=PATIENCE) as http:
            eventually(lambda: _is_ready(http), (folder / "log").read_text)
            yield Prometheus(http, max(scrapes))
    finally:
        process.terminate()
        process.wait()


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False
