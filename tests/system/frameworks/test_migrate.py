"""Rows of docs/migrate.md that people stumble over hold on a real server."""

import json
from typing import Any

import pytest

from tests.docs.test_migrate import ROWS
from tests.system.serving import PACK, Server

pytestmark = pytest.mark.real
HELLO = [{"role": "user", "content": "hello world"}]
DOCUMENTS = ["Bananas are yellow.", "Paris is the capital of France."]
RANK = {"model": "starter-rerank", "query": "What is the capital of France?", "documents": DOCUMENTS}
PROMPT = "<|user|>hello world<|end|><|assistant|>"


def check_row(server: str, there: str, here: str) -> None:
    """Check that the page still has the row that a test is about."""
    assert any(one == server and there in left and here in right for one, left, right in ROWS), (server, there)


def chat(server: Server, path: str = "/v1/chat/completions", **more: Any) -> Any:
    return server.http.post(path, json={"model": "uppercase", "messages": HELLO, "temperature": 0, **more})


def test_an_unknown_model_is_a_404_and_never_a_default(server: Server) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/api/chat", {"messages": HELLO}),
    ):
        assert server.http.post(path, json={"model": "gpt-4", **body}).status_code == 404


def test_any_key_is_accepted_while_there_is_none(server: Server) -> None:
    assert server.http.get("/v1/models", headers={"Authorization": "Bearer sk-anything"}).status_code == 200


def test_vllms_calls_series_and_adapters(server: Server) -> None:
    check_row("vllm serve", "vllm:", "the same")
    check_row("vllm serve", "/v1/load_lora_adapter", "the same")
    check_row("vllm serve", "load_inplace", "a name that exists gets a new version")
    assert server.metric("vllm:num_requests_running", model_name="starter-chat") >= 0
    body = {"lora_name": "moved-here", "lora_path": _adapter("uppercase")}
    assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 200
    try:
        assert chat(server, model="moved-here").json()["choices"][0]["message"]["content"] == "HELLO WORLD"
        body["lora_path"] = _adapter("rot13")
        again = server.http.post("/v1/load_lora_adapter", json={**body, "load_inplace": True})
        assert again.status_code == 200, again.text
        assert chat(server, model="moved-here").json()["choices"][0]["message"]["content"] == "uryyb jbeyq"
    finally:
        assert server.http.post("/v1/unload_lora_adapter", json={"lora_name": "moved-here"}).status_code == 200


def _adapter(name: str) -> str:
    return str(PACK / "adapters" / name)


def test_loraxs_adapter_id_in_the_body(server: Server) -> None:
    check_row("LoRAX", "adapter_id` in the body", "the same")
    answer = chat(server, model="starter-chat", adapter_id="uppercase")
    assert answer.json()["choices"][0]["message"]["content"] == "HELLO WORLD", answer.text
    body = {"inputs": PROMPT, "parameters": {"adapter_id": "uppercase", "max_new_tokens": 40}}
    assert "HELLO WORLD" in server.http.post("/generate", json=body).json()["generated_text"]


def test_xinferences_and_sglangs_names_of_an_adapter(server: Server) -> None:
    check_row("Xinference", "lora_name", "the same")
    for field in ("lora_name", "lora_path"):
        answer = chat(server, model="starter-chat", **{field: "uppercase"})
        assert answer.json()["choices"][0]["message"]["content"] == "HELLO WORLD", answer.text
        assert chat(server, model="starter-chat", **{field: "no-such-adapter"}).status_code == 404


def test_forms_in_the_words_of_earlier_vllms_and_other_servers(server: Server) -> None:
    check_row("vllm serve", "guided_json_object", "the same")
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    for form in ({"guided_json": schema}, {"json_schema": schema}, {"ebnf": 'root ::= "{\\"a\\":1}"'}):
        answer = chat(server, **form)
        assert json.loads(answer.json()["choices"][0]["message"]["content"])["a"] == 1, answer.text
    answer = chat(server, guided_json_object=True, max_tokens=20)
    assert answer.json()["choices"][0]["message"]["content"].startswith("{"), answer.text


def test_tgis_refusals_and_forms(server: Server) -> None:
    check_row("Text Generation Inference", "watermark", "refused")
    check_row("Text Generation Inference", "response_format", "the same")
    for more in ({"watermark": True}, {"typical_p": 0.95}, {"best_of": 2}, {"top_n_tokens": 2}):
        body = {"inputs": PROMPT, "parameters": {"adapter_id": "uppercase", "max_new_tokens": 4, **more}}
        assert server.http.post("/generate", json=body).status_code == 422, more
    form = {"type": "json_object", "value": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}}
    answer = chat(server, response_format=form)
    assert json.loads(answer.json()["choices"][0]["message"]["content"])["a"] == 1, answer.text


def test_teis_and_localais_calls(server: Server) -> None:
    check_row("Text Embeddings Inference", "POST /embed", "the same")
    check_row("LocalAI", "/v1/embeddings", "the same")
    vectors = server.http.post("/embed?model=starter-embed", json={"inputs": ["a", "b"]}).json()
    assert [len(one) for one in vectors] == [384, 384]
    ranked = server.http.post("/rerank", json={"query": RANK["query"], "texts": DOCUMENTS}).json()
    assert ranked[0]["index"] == 1


def test_ollamas_keep_alive_of_0_unloads(server: Server) -> None:
    check_row("Ollama", "keep_alive", "`keep_alive: 0` unloads it")
    assert server.http.post("/api/embed", json={"model": "starter-embed", "input": "a", "keep_alive": 0}).is_success
    server.wait_state("starter-embed", "absent")
