"""Print what LangChain's Cohere and Hugging Face classes get from a server, as one JSON object.

test_langchain.py runs it in a separate environment. Usage: langchain_script.py URL QUERY DOCUMENT...
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import cohere
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, ValidationError
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint, HuggingFaceEndpointEmbeddings

URL, QUERY, *DOCUMENTS = sys.argv[1:]
FAN: dict[str, Any] = {
    "name": "set_fan",
    "description": "Sets the fan.",
    "parameters": {
        "type": "object",
        "properties": {"speed": {"enum": [1, 2]}},
        "required": ["speed"],
        "additionalProperties": False,
    },
}
PERSON: dict[str, Any] = {
    "title": "person",
    "description": "Somebody.",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
PROMPT = "<|user|>hello world<|end|><|assistant|>"
"""A prompt in the starter model's chat template, because text generation applies none."""
ALICE = "alice is 30 years old and lives in paris"


def refused(kind: type[Exception], call: Callable[[], Any]) -> dict[str, Any]:
    """Return the status and text of the error that the call raises, or status 200."""
    try:
        call()
    except kind as error:
        response = getattr(error, "response", None)
        return {"status": getattr(error, "status_code", getattr(response, "status_code", None)), "text": str(error)}
    return {"status": 200, "text": ""}


def rerank() -> dict[str, Any]:
    def model(**more: Any) -> CohereRerank:
        return CohereRerank(**{"model": "starter-rerank", "base_url": URL, "cohere_api_key": "none", **more})

    records = [{"text": text, "title": str(index)} for index, text in enumerate(DOCUMENTS)]
    best = model(top_n=2).compress_documents([Document(text, metadata={"k": 1}) for text in DOCUMENTS], QUERY)
    return {
        "documents": [[document.page_content, document.metadata] for document in best],
        "all": model().rerank(DOCUMENTS, QUERY, top_n=None, max_tokens_per_doc=100),
        "fields": model().rerank(records, QUERY, rank_fields=["text"]),
        "unknown": refused(cohere.NotFoundError, lambda: model(model="nobody").rerank(DOCUMENTS, QUERY)),
    }


def embed() -> dict[str, Any]:
    def model(address: str) -> HuggingFaceEndpointEmbeddings:
        embeddings = HuggingFaceEndpointEmbeddings(model="starter-embed")
        embeddings.client, embeddings.async_client = InferenceClient(address), AsyncInferenceClient(address)
        return embeddings

    named = model(f"{URL}/embed?model=starter-embed")
    return {
        "documents": named.embed_documents(DOCUMENTS),
        "query": asyncio.run(named.aembed_query(QUERY)),
        "unknown": refused(HfHubHTTPError, lambda: model(f"{URL}/embed?model=nobody").embed_query(QUERY)),
    }


def chat() -> dict[str, Any]:
    def model(name: str | None, **more: Any) -> ChatHuggingFace:
        endpoint = HuggingFaceEndpoint(endpoint_url=f"{URL}/v1", temperature=0, max_new_tokens=60)
        # 0 in both: the class copies the endpoint's temperature unless that is 0, and None would mean the model's, 1
        return ChatHuggingFace(llm=endpoint, temperature=0, model_kwargs={"model": name, **more} if name else {})

    upper = model("uppercase")
    answer = upper.invoke([SystemMessage("be brief"), HumanMessage("hello world")])
    chunks = list(upper.stream("hello world", stream_usage=True))
    fan = model("starter-chat").bind_tools([{"type": "function", "function": FAN}], tool_choice="set_fan")
    call = fan.invoke("air")
    after = [HumanMessage("air"), AIMessage("", tool_calls=call.tool_calls)]
    after += [ToolMessage("done", tool_call_id=call.tool_calls[0]["id"])]
    person = model("extract-json")
    return {
        "text": answer.content,
        "usage": answer.usage_metadata,
        "async": asyncio.run(upper.ainvoke("hello world")).content,
        "stream": "".join(str(chunk.content) for chunk in chunks),
        "stream_usage": [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata],
        "calls": [[one["name"], one["args"]] for one in call.tool_calls],
        "after": model("starter-chat").invoke(after).content,
        "person": person.with_structured_output(PERSON, method="function_calling").invoke(ALICE),
        "schema": person.with_structured_output(PERSON, method="json_schema").invoke(ALICE),
        "unnamed": refused(HfHubHTTPError, lambda: model(None).invoke("hello")),
    }


def generate() -> dict[str, Any]:
    """Return what HuggingFaceEndpoint alone gets, mostly without the `typical_p` that it sends by default."""

    def model(path: str = "/?model=uppercase", **more: Any) -> HuggingFaceEndpoint:
        return HuggingFaceEndpoint(
            **{"endpoint_url": URL + path, "temperature": 0.01, "typical_p": None, "max_new_tokens": 60, **more}
        )

    async def parts(endpoint: HuggingFaceEndpoint) -> list[str]:
        return [part async for part in endpoint.astream(PROMPT)]

    def refusals(path: str = "/?model=uppercase", **more: Any) -> list[dict[str, Any]]:
        calls = (
            lambda: model(path, **more).invoke(PROMPT),
            lambda: list(model(path, **more).stream(PROMPT)),
            lambda: asyncio.run(model(path, **more).ainvoke(PROMPT)),
        )
        return [refused(ValidationError, call) for call in calls]

    named = model("/", model_kwargs={"adapter_id": "uppercase"}, stop_sequences=["<|end|>"])
    return {
        "typical_p": refusals(typical_p=0.95),
        "text": model().invoke(PROMPT),
        "async": asyncio.run(model().ainvoke(PROMPT)),
        "generate": model("/generate?model=uppercase").invoke(PROMPT),
        "stream": list(model().stream(PROMPT)),
        "async_stream": asyncio.run(parts(model())),
        "adapter_id": [named.invoke(PROMPT), "".join(named.stream(PROMPT))],
        "stopped": model().invoke(PROMPT, stop=["WOR"]),
        "watermark": refusals(watermark=True),
        "unknown": refusals("/?model=nobody"),
        "too_many": refusals(max_new_tokens=600),
    }


if __name__ == "__main__":
    print(json.dumps({"rerank": rerank(), "embed": embed(), "chat": chat(), "generate": generate()}))
