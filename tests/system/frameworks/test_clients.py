"""LangChain's OpenAI classes against the real server, and the newest clients that its other classes build on.

`langchain-cohere` needs cohere below 6 and `langchain-huggingface` huggingface-hub below 2, and both are newer here.
So test_langchain.py tests those classes in a separate environment, and this file makes their calls with newer clients.
"""

from typing import Any

import cohere
import numpy as np
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, SecretStr

from tests.system.serving import Server
from tests.system.tools import SAYS_CALLS, TOOLS

pytestmark = pytest.mark.real
DOCUMENTS = ["A tuple cannot be changed.", "The open function returns a file object."]
QUERY = "how do I open a file"


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int
    city: str


def chat(server: Server, model: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=f"{server.url}/v1", api_key=SecretStr("none"), temperature=0, **more)


async def test_langchains_chat_answers_whole_streamed_and_in_batches(server: Server) -> None:
    model = chat(server, "uppercase", stream_usage=True)
    answer = model.invoke([SystemMessage("be brief"), HumanMessage("hello world")])
    assert answer.text == "HELLO WORLD"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == len("HELLO WORLD") + 1
    assert answer.response_metadata["model_name"] == "uppercase"
    whole: Any = None
    for chunk in model.stream("hello world"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole.text == "HELLO WORLD"
    assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]
    assert [one.text for one in await model.abatch(["one", "two"])] == ["ONE", "TWO"]


def test_langchain_gets_calls_and_sends_their_results(server: Server) -> None:
    model = chat(server, "starter-chat")
    answer = model.bind_tools(TOOLS, extra_body=SAYS_CALLS).invoke("light and air")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [
        ("set_light", {"state": "on"}), ("set_fan", {"speed": 2}),
    ]  # fmt: skip
    results = [ToolMessage("done", tool_call_id=str(call["id"])) for call in answer.tool_calls]
    assert model.bind_tools(TOOLS).invoke([HumanMessage("light and air"), answer, *results]).text
    forced = model.bind_tools(TOOLS, tool_choice="set_fan").invoke("air")
    assert [call["name"] for call in forced.tool_calls] == ["set_fan"]
    some = model.bind_tools(TOOLS, tool_choice="any").invoke("air")
    assert some.tool_calls


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchains_structured_output(server: Server, method: Any) -> None:
    model = chat(server, "extract-json").with_structured_output(Person, method=method)
    assert model.invoke("alice is 30 years old and lives in paris") == Person(name="alice", age=30, city="paris")


def test_langchains_chat_over_the_responses_api(server: Server) -> None:
    answer = chat(server, "uppercase", use_responses_api=True).invoke("hello world")
    assert answer.text == "HELLO WORLD"


async def test_langchains_embeddings_equal_openais(server: Server, client: OpenAI) -> None:
    model = OpenAIEmbeddings(
        model="starter-embed", base_url=f"{server.url}/v1", api_key=SecretStr("none"), check_embedding_ctx_length=False
    )
    texts = ["a cat sat on the mat", "quarterly revenue grew"]
    expected = [d.embedding for d in client.embeddings.create(model="starter-embed", input=texts).data]
    assert np.allclose(model.embed_documents(texts), expected, atol=1e-5)
    assert np.allclose(await model.aembed_query(texts[0]), expected[0], atol=1e-5)
    with pytest.raises(BadRequestError, match="own tokenizer"):  # token ids as tiktoken makes them
        client.embeddings.create(model="starter-embed", input=[[99_000, 4]])


def test_the_calls_of_langchains_cohere_rerank(server: Server) -> None:
    model = cohere.ClientV2(api_key="none", base_url=server.url)
    for top_n, limit, order in ((None, None, [1, 0]), (1, 4096, [1])):
        answer = model.rerank(
            query=QUERY, documents=DOCUMENTS, model="starter-rerank", top_n=top_n, max_tokens_per_doc=limit
        )
        assert [result.index for result in answer.results] == order
        assert all(0 <= result.relevance_score <= 1 for result in answer.results)


async def test_the_calls_of_langchains_huggingface_endpoint_embeddings(server: Server, client: OpenAI) -> None:
    expected = [d.embedding for d in client.embeddings.create(model="starter-embed", input=DOCUMENTS).data]
    url = f"{server.url}/embed"
    # The class passes a list, which the endpoint accepts, although the client's signature says a string.
    vectors = InferenceClient(model=url, token="none").feature_extraction(text=DOCUMENTS)  # type: ignore[arg-type]
    assert np.allclose(vectors, expected, atol=1e-5)
    one = await AsyncInferenceClient(model=url, token="none").feature_extraction(text=DOCUMENTS[0])
    assert np.allclose(one, expected[:1], atol=1e-5)


async def test_hugging_faces_own_client_chats(server: Server) -> None:
    messages = [{"role": "user", "content": "hello world"}]
    client = InferenceClient(base_url=f"{server.url}/v1", api_key="none")
    answer = client.chat_completion(messages, model="uppercase", temperature=0)
    assert (answer.choices[0].message.content, answer.model) == ("HELLO WORLD", "uppercase")
    async with AsyncInferenceClient(base_url=server.url, api_key="none") as other:
        parts = await other.chat_completion(messages, model="uppercase", temperature=0, stream=True)
        assert "".join([part.choices[0].delta.content or "" async for part in parts if part.choices]) == "HELLO WORLD"
    with pytest.raises(HfHubHTTPError, match="no model or adapter 'dummy'"):
        client.chat_completion(messages)
