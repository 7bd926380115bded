"""`roundhouse routers` against the real application without models."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from registry.state.database import State
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import Answer, FakeServer, ReceivedRequest
from tests.unit.cli.test_routers import write_examples
from tests.unit.http.fakes import FakeGateway, application, recipe

INTENTS = {"routes": {"weather": ["small"], "money": ["big"]}, "threshold": 0.4}


@pytest.fixture
def served(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Passes the command line's requests on to the application."""
    with State(tmp_path / "state") as state:
        gateway = FakeGateway(tmp_path, [recipe(name, "chat") for name in ("small", "big")], state=state)
        with TestClient(application(gateway)) as client:

            def answer(received: ReceivedRequest) -> Answer:
                path = f"{received.path}?{received.query}"
                result = client.request(received.method, path, content=received.body, headers={"x-request-id": "t"})
                return Answer(result.text, result.status_code)

            monkeypatch.setattr(server, "answer", answer)
            yield client


def router(**more: Any) -> dict[str, Any]:
    return {"id": "support", "targets": [{"name": "small", "price": 1}, {"name": "big"}], "default": "small", **more}


def test_eval_of_a_version_decides_as_that_version(served: TestClient, run: Run, tmp_path: Path) -> None:
    data = write_examples(tmp_path)
    served.post("/v1/routers", json=router(intents=INTENTS)).raise_for_status()
    fitted = run("routers", "fit", "support", str(data))
    assert "support: v2 is now current" in fitted.stdout, fitted.output
    other = {"routes": {"weather": ["big"], "money": ["small"]}, "threshold": 0.4}
    served.post("/v1/routers?alias=next", json=router(intents=other)).raise_for_status()
    for name, label, target in (
        ("support@v2", "support@v2", "small"),
        ("support@next", "support@v3", "big"),
        ("support", "support@v3", "big"),
    ):
        reported = json.loads(run("routers", "eval", name, str(data), "--json").stdout)
        assert reported["router"] == label
        assert reported["right"] > 0.9
        assert {"wanted": target, "target": target} in [
            {k: p[k] for k in ("wanted", "target")} for p in reported["pairs"]
        ]
        rain = json.loads(run("routers", "explain", name, "rain again please", "--json").stdout)
        assert (rain["router"], rain["target"]) == (label, target)
    assert json.loads(run("routers", "show", "support@v1", "--json").stdout)["models"] == []
    missing = run("routers", "eval", "support@v9", str(data))
    assert missing.exit_code != 0
    assert "no version 'v9'" in missing.stderr


def test_eval_of_a_router_for_recordings_says_what_to_do(served: TestClient, run: Run, tmp_path: Path) -> None:
    served.post("/v1/routers", json=router(task="transcribe")).raise_for_status()
    refused = run("routers", "eval", "support", str(write_examples(tmp_path)))
    assert refused.exit_code == 1
    assert "POST /v1/route" in refused.stderr
