"""LangChain's Cohere and Hugging Face classes themselves against the real server, in an environment of their own."""

import json
import subprocess
from typing import Any

import cohere
import numpy as np
import pytest
from openai import OpenAI

from tests.system.frameworks.environments import interpreter
from tests.system.serving import ROOT, Server

pytestmark = pytest.mark.real
DOCUMENTS = ["A tuple cannot be changed.", "The open function returns a file object.", "Rain."]
QUERY = "how do I open a file"
UPPER = {"input_tokens": 14, "output_tokens": len("HELLO WORLD") + 1, "total_tokens": 14 + len("HELLO WORLD") + 1}


@pytest.fixture(scope="module")
def found(server: Server) -> dict[str, Any]:
    """What the classes got, by class."""
    script = [
        str(interpreter("langchain")),
        "tests/system/frameworks/langchain_script.py",
        server.url,
        QUERY,
        *DOCUMENTS,
    ]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_coheres_reranker(found: dict[str, Any], server: Server) -> None:
    rerank = found["rerank"]
    client = cohere.ClientV2(api_key="none", base_url=server.url)
    answer = client.rerank(query=QUERY, documents=DOCUMENTS, model="starter-rerank")
    order, scores = [r.index for r in answer.results], [r.relevance_score for r in answer.results]
    assert order[0] == 1
    assert [text for text, _ in rerank["documents"]] == [DOCUMENTS[index] for index in order[:2]]
    assert [kept["k"] for _, kept in rerank["documents"]] == [1, 1]
    assert [kept["relevance_score"] for _, kept in rerank["documents"]] == pytest.approx(scores[:2], abs=1e-5)
    assert [one["index"] for one in rerank["all"]] == order
    assert [one["relevance_score"] for one in rerank["all"]] == pytest.approx(scores, abs=1e-5)
    assert rerank["fields"][0]["index"] == 1
    assert rerank["unknown"]["status"] == 404
    assert "no model or adapter 'nobody'" in rerank["unknown"]["text"]


def test_hugging_faces_embeddings(found: dict[str, Any], client: OpenAI) -> None:
    embed = found["embed"]
    data = client.embeddings.create(model="starter-embed", input=[*DOCUMENTS, QUERY]).data
    assert np.allclose([*embed["documents"], embed["query"]], [d.embedding for d in data], atol=1e-5)
    assert embed["unknown"]["status"] == 404
    assert "no model or adapter 'nobody'" in embed["unknown"]["text"]


def test_hugging_faces_chat(found: dict[str, Any]) -> None:
    chat = found["chat"]
    assert (chat["text"], chat["async"], chat["stream"]) == ("HELLO WORLD",) * 3
    assert chat["stream_usage"] == [UPPER]
    assert chat["usage"]["output_tokens"] == UPPER["output_tokens"]
    [[name, arguments]] = chat["calls"]
    assert (name, arguments["speed"] in (1, 2)) == ("set_fan", True)
    assert chat["after"]
    assert chat["person"] == chat["schema"] == {"name": "alice", "age": 30, "city": "paris"}


def test_what_hugging_faces_chat_cannot_have_is_refused(found: dict[str, Any]) -> None:
    chat = found["chat"]
    assert chat["unnamed"]["status"] == 404
    assert "no model or adapter 'dummy'" in chat["unnamed"]["text"]


def test_hugging_faces_endpoint_by_itself(found: dict[str, Any]) -> None:
    generated = found["generate"]
    assert [generated[name] for name in ("text", "async", "generate")] == ["HELLO WORLD"] * 3
    for name in ("stream", "async_stream"):
        assert generated[name] == [*"HELLO WORLD", "<|end|>"]  # TGI tells special tokens too, and the class shows them
    assert generated["adapter_id"] == ["HELLO WORLD"] * 2
    assert generated["stopped"] == "HELLO "  # the class takes the stop sequence off


def test_what_hugging_faces_endpoint_cannot_have_is_refused(found: dict[str, Any]) -> None:
    for name, words in (
        ("watermark", "This engine does not watermark: set 'watermark' to false."),
        ("typical_p", "Typical decoding is not available: leave 'typical_p' out"),
        ("unknown", "There is no model or adapter 'nobody'. There are: starter-chat"),
    ):
        assert len(found["generate"][name]) == 3
        assert all(reported["text"].startswith(words) for reported in found["generate"][name]), found["generate"][name]
    cut = found["generate"]["too_many"]
    assert [reported["status"] for reported in cut] == [200] * 3
