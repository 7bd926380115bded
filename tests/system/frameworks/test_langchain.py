"""LangChain's Cohere and Hugging Face classes against the real server, in a separate environment."""

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
def results(server: Server) -> dict[str, Any]:
    """The output of langchain_script.py, by class."""
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


def test_langchains_cohere_reranker_agrees_with_coheres_client(results: dict[str, Any], server: Server) -> None:
    rerank = results["rerank"]
    client = cohere.ClientV2(api_key="none", base_url=server.url)
    answer = client.rerank(query=QUERY, documents=DOCUMENTS, model="starter-rerank")
    order, scores = [r.index for r in answer.results], [r.relevance_score for r in answer.results]
    assert order[0] == 1
    assert [text for text, _ in rerank["documents"]] == [DOCUMENTS[index] for index in order[:2]]
    assert [metadata["k"] for _, metadata in rerank["documents"]] == [1, 1]
    assert [metadata["relevance_score"] for _, metadata in rerank["documents"]] == pytest.approx(scores[:2], abs=1e-5)
    assert [one["index"] for one in rerank["all"]] == order
    assert [one["relevance_score"] for one in rerank["all"]] == pytest.approx(scores, abs=1e-5)
    assert rerank["fields"][0]["index"] == 1
    assert rerank["unknown"]["status"] == 404
    assert "no model or adapter 'nobody'" in rerank["unknown"]["text"]


def test_hugging_faces_embeddings(results: dict[str, Any], client: OpenAI) -> None:
    embed = results["embed"]
    data = client.embeddings.create(model="starter-embed", input=[*DOCUMENTS, QUERY]).data
    assert np.allclose([*embed["documents"], embed["query"]], [d.embedding for d in data], atol=1e-5)
    assert embed["unknown"]["status"] == 404
    assert "no model or adapter 'nobody'" in embed["unknown"]["text"]


def test_hugging_faces_chat(results: dict[str, Any]) -> None:
    chat = results["chat"]
    assert (chat["text"], chat["async"], chat["stream"]) == ("HELLO WORLD",) * 3
    assert chat["stream_usage"] == [UPPER]
    assert chat["usage"]["output_tokens"] == UPPER["output_tokens"]
    [[name, arguments]] = chat["calls"]
    assert (name, arguments["speed"] in (1, 2)) == ("set_fan", True)
    assert chat["after"]
    assert chat["person"] == chat["schema"] == {"name": "alice", "age": 30, "city": "paris"}


def test_hugging_faces_chat_without_a_models_name_is_refused(results: dict[str, Any]) -> None:
    chat = results["chat"]
    assert chat["unnamed"]["status"] == 404
    assert "no model or adapter 'dummy'" in chat["unnamed"]["text"]


def test_hugging_faces_endpoint(results: dict[str, Any]) -> None:
    generated = results["generate"]
    assert [generated[name] for name in ("text", "async", "generate")] == ["HELLO WORLD"] * 3
    for name in ("stream", "async_stream"):
        assert generated[name] == [*"HELLO WORLD", "<|end|>"]  # TGI streams special tokens, and the class shows them
    assert generated["adapter_id"] == ["HELLO WORLD"] * 2
    assert generated["stopped"] == "HELLO "  # the class removes the stop sequence


def test_hugging_faces_endpoint_reads_refusals_and_may_ask_for_too_many_tokens(results: dict[str, Any]) -> None:
    refusals = results["generate"]
    for name, words in (
        ("watermark", "This engine does not watermark: set 'watermark' to false."),
        ("typical_p", "Typical decoding is not available: leave 'typical_p' out"),
        ("unknown", "There is no model or adapter 'nobody'. There are: starter-chat"),
    ):
        assert len(refusals[name]) == 3
        assert all(refusal["text"].startswith(words) for refusal in refusals[name]), refusals[name]
    assert [answer["status"] for answer in refusals["too_many"]] == [200] * 3, "cut to the context"
