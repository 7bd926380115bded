"""Official SDKs, uploads, raw connections and clients that disconnect, through a front."""

import socket
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.eventually import PATIENCE, eventually
from tests.system.fleet.serving import FleetOfServers
from tests.system.serving import PACK, Server

pytestmark = pytest.mark.real
SAMPLE = PACK / "samples" / "kitchen-light.wav"
QUESTION: Any = [{"role": "user", "content": "What is a slot?"}]
GREEDY = {"temperature": 0}
"""Sent in the body, because Anthropic's SDK no longer has the parameter."""
Pair = tuple[Server, Server]


def of_openai(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE, max_retries=0)


def of_anthropic(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", timeout=PATIENCE, max_retries=0)


def whole(server: Server, model: str) -> str:
    answer = of_openai(server).chat.completions.create(model=model, messages=QUESTION, temperature=0)
    return f"{answer.choices[0].message.content} {answer.usage}"


def streamed(server: Server, model: str) -> str:
    chunks = of_openai(server).chat.completions.create(
        model=model, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    return "".join(str(c.choices[0].delta.content or "") if c.choices else str(c.usage) for c in chunks)


def response(server: Server, model: str) -> str:
    return of_openai(server).responses.create(model=model, input="What is a slot?", temperature=0).output_text


def vectors(server: Server, _: str) -> str:
    return str(of_openai(server).embeddings.create(model="starter-embed", input=["a cat", "a dog"]).data)


def transcript(server: Server, _: str) -> str:
    with SAMPLE.open("rb") as file:
        return str(of_openai(server).audio.transcriptions.create(model="starter-speech", file=file))


def spoken(server: Server, _: str) -> str:
    with SAMPLE.open("rb") as file:
        events = of_openai(server).audio.transcriptions.create(model="starter-speech", file=file, stream=True)
        return "".join(str(event) for event in events)


def message(server: Server, model: str) -> str:
    answer = of_anthropic(server).messages.create(model=model, max_tokens=64, messages=QUESTION, extra_body=GREEDY)
    return f"{answer.content} {answer.usage}"


def streamed_message(server: Server, model: str) -> str:
    messages = of_anthropic(server).messages
    with messages.stream(model=model, max_tokens=64, messages=QUESTION, extra_body=GREEDY) as stream:
        return f"{''.join(stream.text_stream)} {stream.get_final_message().usage}"


@pytest.mark.parametrize("call", [whole, streamed, response, vectors, transcript, spoken, message, streamed_message])
@pytest.mark.parametrize("model", ["starter-chat", "uppercase"])
def test_an_sdk_gets_the_nodes_answers_through_the_front(pair: Pair, call: Any, model: str) -> None:
    front, node = pair
    assert call(front, model) == call(node, model)


def test_answers_name_the_node_and_keep_the_clients_id(pair: Pair) -> None:
    front, node = pair
    body = {"model": "starter-embed", "input": "a"}
    answer = front.http.post("/v1/embeddings", json=body, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-roundhouse-node"] == "node-1"
    assert answer.headers["x-request-id"] == "mine-1"
    assert node.http.get("/v1/requests/mine-1").json()["record"]["status"] == 200
    refused = front.http.post("/v1/embeddings", json={"model": "none", "input": "a"})
    assert (refused.status_code, refused.headers["x-roundhouse-node"]) == (404, "front-1")


def test_a_client_that_disconnects_ends_the_request_on_the_node(pair: Pair) -> None:
    front, node = pair
    body = b'{"model":"starter-chat","messages":[{"role":"user","content":"hi"}],"stream":true,"ignore_eos":true}'
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: leaves-1\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", front.port)) as client:
        client.sendall(head.encode() + body)
        assert b"200 OK" in client.recv(100)

    def record() -> Any:
        answer = node.http.get("/v1/requests/leaves-1")
        return answer.json()["record"] if answer.status_code == 200 else None

    eventually(lambda: (record() or {}).get("end") is not None, node.tail)
    assert node.model("starter-chat")["running"] == 0


def test_pipelined_requests_and_100_continue_are_answered(pair: Pair) -> None:
    front, _ = pair
    body = b'{"model":"starter-embed","input":"a"}'
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", front.port)) as client:
        client.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 100 Continue")
        client.sendall(body + head + b"Connection: close\r\n\r\n" + body)
        received = b""
        while data := client.recv(65536):
            received += data
    assert received.count(b"HTTP/1.1 200 OK") == 2


def test_head_is_answered_without_a_body_as_by_the_node(pair: Pair) -> None:
    for path in ("/v1/models", "/v1/models/starter-chat", "/v1/models/none", "/v1/embeddings"):
        through, direct = (server.http.head(path) for server in pair)
        assert (through.status_code, through.content) == (direct.status_code, b""), path
        assert through.headers.get("content-type") == direct.headers.get("content-type"), path
        assert through.headers.get("allow") == direct.headers.get("allow"), path


def test_the_front_lists_the_models_of_the_node(pair: Pair) -> None:
    front, node = pair

    def ids(server: Server) -> list[str]:
        return sorted(one["id"] for one in server.http.get("/v1/models").json()["data"])

    eventually(lambda: "auto" in ids(front), front.tail)  # once the files of the node's router have arrived
    assert ids(front) == ids(node)
    assert (
        front.http.get("/v1/models/uppercase").json()["digest"]
        == node.http.get("/v1/models/uppercase").json()["digest"]
    )
    refused = front.http.post("/v1/models/starter-chat/load")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "is_front")


def test_the_fleets_header_is_dropped_and_counted_on_public_ports(pair: Pair) -> None:
    for server in pair:
        before = server.http.get("/v1/fleet").json()["dropped_headers"]
        answer = server.http.get("/v1/models", headers={"x-roundhouse-context": "e30="})
        assert answer.status_code == 200
        assert server.http.get("/v1/fleet").json()["dropped_headers"] == before + 1


def test_another_front_shares_the_port(servers: FleetOfServers, pair: Pair) -> None:
    front, _ = pair

    def fronts() -> set[str]:
        """Return which fronts answer eight new connections."""
        answers = [httpx.get(f"{front.url}/v1/models", trust_env=False, timeout=PATIENCE) for _ in range(8)]
        assert {answer.status_code for answer in answers} == {200}
        return {answer.headers["x-roundhouse-node"] for answer in answers}

    with servers.front("front-2", "--shared-port", f"--port={front.port}") as other:
        eventually(lambda: fronts() == {"front-1", "front-2"}, other.tail)
        assert other.stop() == 0, other.tail()
    assert fronts() == {"front-1"}
