"""What shells, editors and other languages make of JSON is recognised, and the error says what to do."""

import httpx
import pytest

BODY = '{"model": "chat", "messages": [{"role": "user", "content": "hi"}]}'
IN_A_FILE = "curl -d @file"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/api/chat"])
@pytest.mark.parametrize(
    ("body", "advice"),
    [
        (b"", "It is empty."),
        (b" \n", "It is empty."),
        (f"'{BODY}'".encode(), IN_A_FILE),
        (BODY.replace('"', "'").encode(), "double quotes"),
        (BODY.replace('"', "").encode(), "double quotes"),
        (BODY.encode("utf-16"), "UTF-16"),
        (b"body.json", IN_A_FILE),
        (b'{"model": "chat", "stream": True, "messages": []}', "true, false and null in lower case"),
        (b'{"model": "chat", "messages": [],}', "trailing comma in object"),
        (b'{"model": "chat", "input": "a train \\ud83d"}', "an emoji was cut in two"),
        (b'{"input": "a train \\uD83D", "model": "chat"}', "an emoji was cut in two"),
        (b'{"input": "a train \\ude82", "model": "chat"}', "an emoji was cut in two"),
    ],
)
async def test_the_error_says_what_to_do(client: httpx.AsyncClient, path: str, body: bytes, advice: str) -> None:
    answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert (answer.status_code, "not valid JSON" in message) == (400, True), message
    assert advice in message


@pytest.mark.parametrize("body", [b'{"a": "it\'s True, None]"', b'{"a": 1', b"[1", b"17"])
async def test_other_faults_get_no_wrong_advice(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.post("/v1/embeddings", content=body, headers={"Content-Type": "application/json"})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert not any(word in message for word in (IN_A_FILE, "double quotes", "UTF-16", "empty", "lower case"))


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
async def test_a_body_that_can_be_read_but_not_written_is_a_clients_fault(
    client: httpx.AsyncClient, begin: str, end: str
) -> None:
    """msgspec reads up to 990 levels, and writes fewer, depending on its callers."""
    for depth in range(800, 1000):
        deep = begin * depth + "1" + end * depth
        body = f'{{"messages": [{{"role": "user", "content": "hi"}}], "model": "chat", "foo": {deep}}}'
        answer = await client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
        assert answer.json()["error"]["code"] != "internal_error", depth
