"""Cohere's own Python package, unchanged, against the real server: chat and embeddings."""

import base64
from typing import Any

import cohere
import numpy as np
import pytest
from cohere.types import EmbedByTypeResponse

from tests.eventually import PATIENCE
from tests.system.serving import Server
from tests.system.tools import LIGHT
from tests.system.vendor import asking
from tests.system.vendor.strict import faults

pytestmark = pytest.mark.real
HELLO: Any = [{"role": "user", "content": "hello world"}]
TEXTS = ["a warm kitchen", "a cold cellar", "an oven"]


@pytest.fixture(scope="module")
def clients(server: Server) -> cohere.ClientV2:
    return cohere.ClientV2(base_url=server.url, api_key="none", timeout=PATIENCE)


def test_a_chat_whole_and_streamed(clients: cohere.ClientV2) -> None:
    whole = clients.chat(model="uppercase", messages=HELLO, temperature=0)
    assert whole.message.content
    assert (whole.message.content[0].text, whole.finish_reason) == ("HELLO WORLD", "COMPLETE")  # type: ignore[union-attr]
    assert whole.usage
    assert whole.usage.tokens
    assert whole.usage.tokens.output_tokens == len("HELLO WORLD") + 1
    events = list(clients.chat_stream(model="uppercase", messages=HELLO, temperature=0))
    deltas: list[Any] = [event for event in events if event.type == "content-delta"]
    assert "".join(event.delta.message.content.text for event in deltas) == "HELLO WORLD"
    assert (events[0].type, events[-1].type) == ("message-start", "message-end")
    cut = clients.chat(model="uppercase", messages=HELLO, temperature=0, max_tokens=3)
    assert cut.finish_reason == "MAX_TOKENS"
    stopped = clients.chat(model="uppercase", messages=HELLO, temperature=0, stop_sequences=[" "])
    assert stopped.finish_reason == "STOP_SEQUENCE"


def test_a_schema_binds_the_answer(clients: cohere.ClientV2) -> None:
    form: Any = {"type": "json_object", "json_schema": LIGHT}
    answer = clients.chat(model="starter-chat", messages=HELLO, response_format=form, max_tokens=60)
    assert answer.message.content
    assert answer.message.content[0].text in (
        '{"state":"on"}',
        '{"state":"off"}',
        '{"state": "on"}',
        '{"state": "off"}',
    )  # type: ignore[union-attr]


def test_errors_are_raised_as_coheres_classes(clients: cohere.ClientV2) -> None:
    with pytest.raises(cohere.NotFoundError, match="nothing"):
        clients.chat(model="nothing", messages=HELLO)
    with pytest.raises(cohere.BadRequestError, match="leave 'documents' out"):
        clients.chat(model="uppercase", messages=HELLO, documents=["a"])
    with pytest.raises(cohere.BadRequestError, match="context"):
        clients.chat(model="uppercase", messages=[{"role": "user", "content": "x" * 3000}])  # type: ignore[list-item]


def test_embeddings_in_every_type(clients: cohere.ClientV2, server: Server) -> None:
    types = ["float", "base64", "int8", "uint8", "binary", "ubinary"]
    body = {"model": "starter-embed", "texts": TEXTS, "input_type": "search_document", "embedding_types": types}
    assert faults(EmbedByTypeResponse, asking.whole(server.http, "/v2/embed", body)) == []
    embeddings = clients.embed(
        model="starter-embed", texts=TEXTS, input_type="search_document", embedding_types=types
    ).embeddings
    floats = np.array(embeddings.float_)
    openai = asking.whole(server.http, "/v1/embeddings", {"model": "starter-embed", "input": TEXTS})["data"]
    np.testing.assert_allclose(floats, [row["embedding"] for row in openai], atol=1e-3)
    assert embeddings.base64
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(embeddings.base64[0]), "<f4"), floats[0], atol=1e-6)
    small = np.array(embeddings.int8) / np.linalg.norm(np.array(embeddings.int8), axis=1, keepdims=True)
    np.testing.assert_allclose(small @ small.T, floats @ floats.T, atol=0.02)
    assert np.array_equal(np.unpackbits(np.array(embeddings.ubinary, dtype=np.uint8), axis=1), floats > 0)
    assert np.array_equal(np.array(embeddings.binary) + 128, embeddings.ubinary)
    assert np.array_equal(np.array(embeddings.int8) + 128, embeddings.uint8)


def test_equal_documents_keep_their_order(clients: cohere.ClientV2) -> None:
    """Also among documents of other lengths, which are computed in other batches."""
    same, long = "The open function returns a file object.", "A tuple cannot be changed. " * 20
    documents = [same, long, same, "Bread.", same, long, same, "Bread."] * 4
    results = clients.rerank(model="starter-rerank", query="how do I open a file", documents=documents).results
    for text in (same, long, "Bread."):
        equal = [result for result in results if documents[result.index] == text]
        assert [one.index for one in equal] == [index for index, one in enumerate(documents) if one == text]
        assert len({one.relevance_score for one in equal}) == 1
