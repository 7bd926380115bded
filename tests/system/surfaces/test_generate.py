"""Text generation by Hugging Face's own client, and by plain HTTP like LoRAX's client, on the starter model."""

import json
from typing import Any

import psutil
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import ValidationError

from tests.system.serving import Server

pytestmark = pytest.mark.real
PROMPT = "<|user|>hello world<|end|><|assistant|>"
"""A prompt in the starter model's chat template, which the server does not apply here."""
TOKENS = [*"HELLO WORLD", "<|end|>"]


def hub(server: Server, path: str = "/generate", model: str = "uppercase") -> InferenceClient:
    return InferenceClient(f"{server.url}{path}?model={model}", token="none")


async def test_hugging_faces_client_generates(server: Server) -> None:
    assert hub(server).text_generation(PROMPT) == "HELLO WORLD"
    assert hub(server, "/").text_generation(PROMPT) == PROMPT + "HELLO WORLD"  # like TGI on this path
    assert hub(server, "/").text_generation(PROMPT, return_full_text=False) == "HELLO WORLD"
    assert list(hub(server, "/generate_stream").text_generation(PROMPT, stream=True)) == TOKENS
    async with AsyncInferenceClient(f"{server.url}/?model=starter-chat", token="none") as client:
        parts = await client.text_generation(PROMPT, stream=True, adapter_id="uppercase", details=True)
        found = [part async for part in parts]
    assert [part.token.text for part in found] == TOKENS
    assert [part.token.special for part in found] == [False] * 11 + [True]
    assert [part.generated_text for part in found] == [None] * 11 + [PROMPT + "HELLO WORLD"]
    details = found[-1].details
    assert details is not None
    assert (details.finish_reason, details.generated_tokens, details.input_length) == ("eos_token", 12, 14)


def test_details_have_tokens_prompt_and_reason_of_the_end(server: Server) -> None:
    whole = hub(server).text_generation(PROMPT, details=True, decoder_input_details=True)
    assert whole.details is not None
    assert [token.text for token in whole.details.tokens] == TOKENS
    assert [token.text for token in whole.details.prefill] == ["<|user|>", *"hello world", "<|end|>", "<|assistant|>"]
    assert [token.logprob is None for token in whole.details.prefill] == [True] + [False] * 13
    assert all(token.logprob > -0.1 for token in whole.details.tokens)
    assert (whole.details.finish_reason, whole.details.seed) == ("eos_token", None)
    short = hub(server).text_generation(PROMPT, details=True, max_new_tokens=3)
    assert (short.generated_text, short.details.finish_reason) == ("HEL", "length")  # type: ignore[union-attr]
    stopped = hub(server).text_generation(PROMPT, details=True, stop=["O W", "zzz"])
    assert (stopped.generated_text, stopped.details.finish_reason) == ("HELLO W", "stop_sequence")  # type: ignore[union-attr]
    cut = hub(server).text_generation(f"x{PROMPT}", details=True, decoder_input_details=True, truncate=14)
    assert (cut.generated_text, cut.details.prefill) == ("HELLO WORLD", whole.details.prefill)  # type: ignore[union-attr]


def test_a_reported_seed_reproduces_the_answer(server: Server) -> None:
    client = hub(server, model="starter-chat")
    requested: dict[str, Any] = {"temperature": 2.0, "max_new_tokens": 20, "details": True}
    first = client.text_generation("hello", **requested)
    assert first.details is not None
    assert client.text_generation("hello", seed=first.details.seed, **requested) == first
    found = {client.text_generation("hello", **requested).generated_text for _ in range(40)}  # "!" in 0.42 of all
    assert len(found) > 1


def test_a_grammar_binds_the_answer_or_is_refused(server: Server) -> None:
    client = hub(server)
    assert client.text_generation(PROMPT, grammar={"type": "json", "value": {"enum": [17]}}) == "17"  # type: ignore[arg-type]
    assert client.text_generation(PROMPT, grammar={"type": "regex", "value": "[0-9]{2}Q"})[2:] == "Q"  # type: ignore[arg-type]
    nothing: Any = {"type": "json", "value": {"$ref": "#"}}
    for call in (lambda: client.text_generation(PROMPT, grammar=nothing),
                 lambda: list(client.text_generation(PROMPT, grammar=nothing, stream=True))):  # fmt: skip
        with pytest.raises(ValidationError, match="leads back to itself"):
            call()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"watermark": True}, "does not watermark"),
        ({"best_of": 2}, "best_of"),
        ({"top_n_tokens": 3}, "/v1/completions"),
        ({"typical_p": 1.5}, "typical_p"),
        ({"typical_p": 0.95}, "typical_p"),
        ({"temperature": 4.0}, "temperature must be in"),
        ({"adapter_id": "nobody"}, "no adapter 'nobody'"),
        ({"truncate": 600}, "truncate=600"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused(server: Server, more: dict[str, Any], words: str) -> None:
    client = hub(server, model="starter-chat")
    for stream in (False, True):
        with pytest.raises(ValidationError, match=words):
            list(client.text_generation(PROMPT, stream=stream, **more))


def test_requests_as_loraxs_client_sends_them(server: Server) -> None:
    """They have all fields of its classes. The adapter needs no base name, as there is only one chat model."""
    parameters = {
        "adapter_id": "uppercase", "adapter_source": "hub", "merged_adapters": None, "api_token": None,
        "do_sample": False, "max_new_tokens": 20, "ignore_eos_token": False, "repetition_penalty": None,
        "return_full_text": False, "stop": [], "seed": None, "temperature": None, "top_k": None, "top_p": None,
        "truncate": None, "typical_p": None, "best_of": None, "watermark": False, "details": True,
        "decoder_input_details": False, "return_k_alternatives": None, "response_format": None,
    }  # fmt: skip
    requested = {"inputs": PROMPT, "parameters": parameters}
    answer = server.http.post("/", json={**requested, "stream": False})
    assert answer.headers["x-roundhouse-adapter"].startswith("uppercase@sha256:")
    [found] = answer.json()
    assert found["generated_text"] == "HELLO WORLD"
    assert {"finish_reason", "prompt_tokens", "generated_tokens", "skipped_tokens", "prefill", "tokens"} <= found[
        "details"
    ].keys()
    assert all({"id", "text", "logprob", "special", "skipped"} <= token.keys() for token in found["details"]["tokens"])
    text = ""
    with server.http.stream("POST", "/", json={**requested, "stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                token = json.loads(line.lstrip("data:").rstrip("/n"))["token"]  # noqa: B005 as it reads them
                text += "" if token["special"] else token["text"]
    assert text == "HELLO WORLD"


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_an_input_of_two_megabytes_is_refused_by_its_size(server: Server, path: str) -> None:
    before = psutil.Process(server.slot_pid("starter-chat")).memory_info().rss
    refused = server.http.post(path, json={"model": "starter-chat", "inputs": "a " * 2**20})
    assert refused.status_code == 413, refused.text
    assert "bytes" in refused.json()["error"]
    assert psutil.Process(server.slot_pid("starter-chat")).memory_info().rss < before + 64 * 2**20
