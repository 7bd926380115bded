"""Embeddings, rankings, transcripts and models, against the vendors' types."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from cohere import RerankResponse
from cohere.v2.types import V2RerankResponse
from openai.types import CreateEmbeddingResponse, Model
from openai.types.audio import Transcription, TranscriptionStreamEvent, TranscriptionVerbose

from tests.system.serving import PACK, Server
from tests.system.vendor.asking import whole
from tests.system.vendor.published import JinaRanking, TeiRank
from tests.system.vendor.strict import faults

pytestmark = pytest.mark.real
REQUEST = {"model": "starter-rerank", "query": "how do I open a file", "documents": ["a tuple", "the open function"]}
SAMPLE = sorted((PACK / "samples").glob("*.wav"))[0]


def test_embeddings_have_their_vendors_types(server: Server) -> None:
    answer = whole(server.http, "/v1/embeddings", {"model": "starter-embed", "input": ["a", "b c"]})
    assert faults(CreateEmbeddingResponse, answer) == []
    assert faults(list[list[float]], whole(server.http, "/embed", {"inputs": ["a", "b c"]})) == []


def test_embeddings_in_base64_have_openais_type_once_decoded(server: Server) -> None:
    """OpenAI's document has no type for them. Its clients decode them to lists of numbers, as this test does."""
    requested = {"model": "starter-embed", "input": "a", "encoding_format": "base64"}
    answer = whole(server.http, "/v1/embeddings", requested)
    for one in answer["data"]:
        one["embedding"] = np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist()
    assert faults(CreateEmbeddingResponse, answer) == []


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/rerank", JinaRanking),
        ("/rerank", JinaRanking),
        ("/v1/rerank", RerankResponse),
        ("/v2/rerank", V2RerankResponse),
    ],
)
def test_rankings_have_their_vendors_types(server: Server, path: str, kind: Any, repeat: bool) -> None:
    assert faults(kind, whole(server.http, path, {**REQUEST, "return_documents": repeat})) == []


@pytest.mark.parametrize("repeat", [False, True])
def test_rankings_of_text_embeddings_inference(server: Server, repeat: bool) -> None:
    requested = {"query": REQUEST["query"], "texts": REQUEST["documents"], "return_text": repeat}
    assert faults(list[TeiRank], whole(server.http, "/rerank", requested)) == []


def transcribe(server: Server, **more: Any) -> str:
    form = {"model": "starter-speech", **more}
    answer = server.http.post("/v1/audio/transcriptions", data=form, files={"file": (SAMPLE.name, SAMPLE.read_bytes())})
    assert answer.status_code == 200, answer.text
    return answer.text


def test_transcripts_have_openais_types(server: Server) -> None:
    assert faults(Transcription, json.loads(transcribe(server, response_format="json"))) == []
    for granularities in (["word"], ["segment"], ["word", "segment"]):
        form = {"response_format": "verbose_json", "timestamp_granularities[]": granularities}
        assert faults(TranscriptionVerbose, json.loads(transcribe(server, **form))) == []


def test_transcripts_in_a_stream(server: Server) -> None:
    kind: Any = TranscriptionStreamEvent
    lines = transcribe(server, stream="true").splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert {event["type"] for event in events} == {"transcript.text.delta", "transcript.text.done"}
    for event in events:
        assert faults(kind, event) == []


def test_models_have_openais_type(server: Server) -> None:
    for name in ("starter-chat", "uppercase"):
        assert faults(Model, server.http.get(f"/v1/models/{name}").json()) == []
    listed = server.http.get("/v1/models").json()
    assert (set(listed), listed["object"]) == ({"object", "data"}, "list")
    for model in listed["data"]:
        assert faults(Model, model) == []
