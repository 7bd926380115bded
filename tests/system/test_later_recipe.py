"""A recipe that comes after an adapter and has its name."""

from pathlib import Path

import pytest

from registry.records import AdapterKey, NewVersion
from registry.state.database import State
from tests.system.serving import Server

pytestmark = pytest.mark.real

CHAT = """
id: base
version: 1
task: chat
source: {package: models.starter, inside: pack/starter-chat}
engine: {name: vllm}
memory: {kv_cache: 64MiB, adapters: {device: 2, host: 4, max_rank: 8}}
"""
LATER = """
id: legal
version: 1
task: rerank
source: {package: models.starter, inside: pack/starter-rerank}
engine: {name: sentence-transformers}
"""


def test_it_wins_the_log_says_so_and_the_adapter_can_be_removed(tmp_path: Path) -> None:
    with State(tmp_path / "data") as state:
        state.adapters.register(AdapterKey("base", "legal"), NewVersion(f"sha256:{1:064x}", 8, 100, "test"))
    (tmp_path / "recipes.yaml").write_text(f"{CHAT}---{LATER}")
    server = Server(tmp_path / "data", [tmp_path / "recipes.yaml"], "--slots", "1")
    try:
        server.wait_ready()
        reported = "'legal' means the model of that name, and not adapter 'base:legal': rename one of them"
        assert reported in server.log.read_text()
        assert server.model("legal")["task"] == "rerank"
        assert server.http.get("/v1/adapters/base:legal").json()["base"] == "base"
        assert server.http.delete("/v1/adapters/base:legal").status_code == 200
        assert server.http.get("/v1/adapters").json()["data"] == []
    finally:
        server.stop()
