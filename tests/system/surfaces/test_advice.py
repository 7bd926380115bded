"""Advice in errors is correct: a request that follows it succeeds.

The texts are collected from the code that reads requests for answers, so this fails if a new one has no test.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.system.serving import PACK, ROOT, Server
from tests.system.tools import HELLO, LIGHT, MODEL, TOOLS

READERS = (
    "runtime/http/audio", "runtime/http/bodies.py", "runtime/http/embeddings", "runtime/http/guard/bodies.py",
    "runtime/http/guard/origin.py", "runtime/http/hints.py", "runtime/http/ollama", "runtime/http/rerank",
    "runtime/http/text_generation", "runtime/http/upload.py", "models/chat/requests", "models/text",
)  # fmt: skip
"""Modules that read requests for answers."""
ADVISES = re.compile(r"\b(send|leave|set|give|use one|shorten|add it|ask for|say which|make it)\b", re.IGNORECASE)
ERRORS = frozenset({"BadRequest", "ContextLengthExceeded", "Forbidden", "TooLarge", "Unfit", "UnsupportedMedia"})
OTHER_TESTS = {
    "add it with --allowed-hosts": "tests/unit/guard/test_origin.py",
    "add its origin with --cors-origins": "tests/unit/guard/test_origin.py",
    "Send a Host header": "tests/unit/guard/test_origin.py",
    "Send one header": "tests/unit/guard/test_origin.py",
    "or multipart/form-data with a file": "tests/unit/http/admin/test_adapter_upload.py",
    "Content-Encoding gzip, deflate or zstd": "tests/unit/guard/test_codings.py",
    "or without Content-Encoding": "tests/unit/guard/test_codings.py",
    "Send fewer, smaller or shorter ones": "tests/contract/vllm/test_media.py",
    "Send smaller or shorter ones": "tests/contract/vllm/test_media.py",
    "images are not read from files here": "tests/unit/models/chat/requests/test_moves.py",
    "leave what belongs to the vendor's tools": "tests/unit/models/chat/requests/test_fields.py",
    "Ask for a stream, or for fewer": "tests/unit/models/chat/test_counts.py",
    "for clients to set": "tests/unit/models/chat/test_counts.py",
    "bytes for this model": "tests/unit/models/chat/test_counts.py",
    "This request is for": "tests/unit/models/chat/test_counts.py",
    "is not a role of a message": "tests/unit/models/chat/test_counts.py",
    "has no effect here: leave it out": "tests/unit/http/test_cohere.py",
    "give each a name of its own": "tests/unit/models/chat/requests/test_client_tools.py",
    "The schema holds more than": "tests/unit/http/text_generation/test_requests.py",
    "'input' is empty": "an engine's second look, behind that of `runtime.http.embeddings`",
    "'documents' is empty": "an engine's second look, behind that of `runtime.http.rerank`",
    "is empty: send at least one character or token": "as the two above",
    "The query and a document have no tokens": "no tokenizer here drops all of a text",
    "this model's tokenizer drops all of its content": "no tokenizer here drops all of a text",
    "whatever their tokens are": "longer than the body of this model may be",
    "that none of them": "of the models that are served",
}
"""Texts that have another test, or that these models do not give."""
CHAT, RESPONSES, MESSAGES, TEXT = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"
EMBED, RERANK, SCORE, GENERATE = "/v1/embeddings", "/v1/rerank", "/score", "/generate"
SPEECH = "/v1/audio/transcriptions"
WORDS = {CHAT: {"messages": HELLO}, RESPONSES: {"input": "hello"}, MESSAGES: {"messages": HELLO}, TEXT: {"prompt": "a"}}
SHORT = {"max_output_tokens": 2}


@dataclass(frozen=True)
class Advice:
    """A request that is refused, and what the error's text says to send instead."""

    text: str
    path: str
    bad: dict[str, Any]
    good: dict[str, Any] = field(default_factory=dict)
    strict: bool = False


def texts(**fields: Any) -> dict[str, Any]:
    return {"model": "starter-embed", "input": "a", **fields}


def ranks(**fields: Any) -> dict[str, Any]:
    return {"model": "starter-rerank", "query": "q", "documents": ["a", "b"], **fields}


def generates(**parameters: Any) -> dict[str, Any]:
    return {"model": MODEL, "inputs": "hello", "parameters": {"max_new_tokens": 2, **parameters}}


TYPICAL, MIRRORED = {"vllm_xargs": {"typical_p": 0.5}}, {"type": "web_search"}
FUNCTION = {"type": "function", "name": "set_light", "parameters": LIGHT}
OLLAMA = {"model": MODEL, "messages": HELLO, "stream": False}
PROMPT = {"model": MODEL, "prompt": "hello", "stream": False, "options": {"num_predict": 2}}
TEXT_FORMAT = {"format": {"type": "text"}}
TABLE = [
    Advice("leave 'typical_p' out, or set it to null", CHAT, TYPICAL, {"temperature": 0, **TYPICAL}),
    Advice("leave 'typical_p' out, and set 'top_p' or 'min_p'", "/api/chat",
           {**OLLAMA, "options": {"typical_p": 0.5}}, {**OLLAMA, "options": {"top_p": 0.5, "num_predict": 2}}),
    Advice("is not in this model's vocabulary, which ends at", "/detokenize", {"model": MODEL, "tokens": [1, 10**6]},
           {"model": MODEL, "tokens": [1]}),
    Advice("verbosity. This engine would ignore it: leave it out.", CHAT, {"verbosity": "low"}, {}, strict=True),
    Advice("ask for several with 'n'", TEXT, {"best_of": 2}, {"n": 2}),
    Advice("send 'tools'", CHAT, {"functions": [TOOLS[0]["function"]]}, {"tools": TOOLS}),
    Advice("send 'tool_choice'", CHAT, {"function_call": "auto"}, {"tool_choice": "auto", "tools": TOOLS}),
    Advice("bytes of JSON together. Send fewer, or shorter ones.", CHAT,
           {"bad_words": [f"a long word, number {number}" for number in range(700)]}, {"bad_words": ["abc"]}),
    Advice("send 'stop'", CHAT, {"stop_sequences": ["a"]}, {"stop": ["a"]}),
    Advice("send 'max_tokens'", CHAT, {"max_new_tokens": 3}, {"max_tokens": 3}),
    Advice("send 'structured_outputs'", CHAT, {"guided_choice": ["a", "b"], "guided_regex": "a|b"},
           {"structured_outputs": {"choice": ["a", "b"]}}),
    Advice("send 'repetition_penalty' alone", CHAT, {"repeat_penalty": 1.1, "repetition_penalty": 1.1},
           {"repetition_penalty": 1.1}),
    Advice("send 'max_tokens' alone", CHAT, {"n_predict": 3, "max_tokens": 3}, {"max_tokens": 3}),
    Advice("write the fields in it into the body itself", CHAT, {"extra_body": {"top_k": 1}}, {"top_k": 1}),
    Advice("send it as a message of the role 'system'", CHAT, {"instructions": "be brief"},
           {"messages": [{"role": "system", "content": "be brief"}, *HELLO]}),
    Advice("send 'max_completion_tokens'", CHAT, {"max_output_tokens": 3}, {"max_completion_tokens": 3}),
    Advice("send 'messages'", CHAT, {"input": "hello"}, {"messages": HELLO}),
    Advice("leave the field out, or 'stream'", CHAT, {"prompt_logprobs": 0, "stream": True}, {"prompt_logprobs": 0}),
    Advice("has no 'schema': send one, or the type 'json_object'", CHAT,
           {"response_format": {"type": "json_schema", "json_schema": {"name": "light"}}},
           {"response_format": {"type": "json_schema", "json_schema": {"name": "light", "schema": LIGHT}}}),
    Advice("n must be at most 128, got 200. Send several requests.", CHAT, {"n": 200}, {"n": 128}),
    Advice("send 'response_format'", CHAT, {"text": TEXT_FORMAT}, {"response_format": {"type": "text"}}),
    Advice("send 'max_output_tokens'", RESPONSES, {"max_tokens": 3}, SHORT),
    Advice("send 'input'", RESPONSES, {"messages": HELLO}, {"input": HELLO, **SHORT}),
    Advice("send 'text': {", RESPONSES, {"response_format": {"type": "text"}}, {"text": TEXT_FORMAT, **SHORT}),
    Advice("by an 'item_reference': send the item itself", RESPONSES,
           {"input": [*HELLO, {"type": "item_reference", "id": "msg_1"}]},
           {"input": [*HELLO, {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}], **SHORT}),
    Advice("send the conversation as 'input'", RESPONSES, {"conversation": "conv_1"}, SHORT),
    Advice("as a part of type 'input_text'", RESPONSES,
           {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "aGk="}]}]},
           {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], **SHORT}),
    Advice("send 'stop_sequences'", MESSAGES, {"stop": ["a"]}, {"stop_sequences": ["a"]}),
    Advice("send 'output_config'", MESSAGES, {"response_format": {"type": "json_object"}},
           {"output_config": {"format": {"type": "json_schema", "schema": LIGHT}}}),
    Advice("there are no 'tools': send some, or leave it out", MESSAGES, {"tool_choice": {"type": "any"}}, {}),
    Advice("send 'prompt', or the request to /v1/chat/completions", TEXT, {"messages": HELLO}, {}),
    Advice("this model knows no effort of reasoning: leave it out", MESSAGES, {"output_config": {"effort": "low"}}, {},
           strict=True),
    Advice("Leave 'store' out", RESPONSES, {"store": True}, SHORT, strict=True),
    Advice("Responses are not stored for you here", RESPONSES, {"previous_response_id": "resp_1"}, SHORT),
    Advice("Responses are not stored for you here", RESPONSES, {"background": True}, SHORT),
    Advice("leave 'truncation' out", RESPONSES, {"truncation": "auto"}, SHORT, strict=True),
    Advice("leave 'text.verbosity' out", RESPONSES, {"text": {"verbosity": "low"}}, {"text": {}, **SHORT}, strict=True),
    Advice("leave 'reasoning.effort' out", RESPONSES, {"reasoning": {"effort": "low"}}, {"reasoning": {}, **SHORT},
           strict=True),
    Advice("leave 'reasoning.", RESPONSES, {"reasoning": {"summary": "detailed"}}, {"reasoning": {}, **SHORT},
           strict=True),
    Advice("are not known here: send a function", RESPONSES, {"tools": [{"type": "magic"}]},
           {"tools": [FUNCTION], **SHORT}),
    Advice("only functions are available here", RESPONSES, {"tools": [MIRRORED]}, {"tools": [FUNCTION], **SHORT},
           strict=True),
    Advice("demands a call: send a function", RESPONSES, {"tools": [MIRRORED], "tool_choice": "required"},
           {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "set_light"}}),
    Advice("This engine would ignore it: leave it out", CHAT, {"stream": True, "stream_options": {"color": 1}}, {},
           strict=True),
    Advice("The chat template of this model does not read it", CHAT, {"chat_template_kwargs": {"slip": 1}}, {},
           strict=True),
    Advice("Say which model in 'model'", EMBED, {"input": "a"}, texts()),
    Advice("Say which model in 'model'", "/api/show", {}, {"model": MODEL}),
    Advice("inputs; at most", EMBED, texts(input=["a"] * 2049), texts(input=["a"] * 2048)),
    Advice("documents; at most", RERANK, ranks(documents=["a"] * 2049), ranks(documents=["a"] * 2048)),
    Advice("or send 'truncate': true", EMBED, texts(truncate_prompt_tokens=5), texts(truncate=True)),
    Advice("less of each document, send 'max_tokens_per_doc'", RERANK, ranks(truncate_prompt_tokens=5),
           ranks(max_tokens_per_doc=5)),
    Advice("at the end only: send 'truncate': true", EMBED, texts(truncate="START"), texts(truncate=True)),
    Advice("Leave 'truncation_direction' out", "/embed",
           {"model": "starter-embed", "inputs": "a", "truncate": True, "truncation_direction": "left"},
           {"model": "starter-embed", "inputs": "a", "truncate": True}),
    Advice("Texts can be cut on the right only. Leave 'truncation_direction' out", "/rerank",
           {"query": "q", "texts": ["a"], "truncate": True, "truncation_direction": "left"},
           {"query": "q", "texts": ["a"], "truncate": True}),
    Advice("is an empty list. Send at least one input", EMBED, texts(input=[]), texts(input=["a"])),
    Advice("Send one kind only", EMBED, texts(input=["a", 5]), texts(input=["a", "5"])),
    Advice("Leave 'dimensions' out", EMBED, texts(dimensions=3), texts()),
    Advice("send text if you have another", EMBED, texts(input=[10**6]), texts(input="a")),
    Advice("Shorten it, or ask for truncation", EMBED, texts(input="word " * 400),
           texts(input="word " * 400, truncate=True)),
    Advice("of them may be the query's. Shorten it, or ask for truncation", RERANK, ranks(query="word " * 600),
           ranks(query="word " * 600, truncate=True)),
    Advice("Leave 'relevant_spans' out", "/v2/rerank", ranks(relevant_spans={}), ranks()),
    Advice("Send a string, an object with 'text'", RERANK, ranks(documents=[{"body": "a"}]),
           ranks(documents=[{"body": "a"}], rank_fields=["body"])),
    Advice("is an empty list. Send at least one.", RERANK, ranks(documents=[]), ranks(documents=["a"])),
    Advice("is an empty list. Send at least one text", SCORE, {"text_1": "a", "text_2": []},
           {"text_1": "a", "text_2": ["b"]}),
    Advice("Send 'text_1' and 'text_2'", SCORE, {"text_1": "a"}, {"queries": "a", "documents": "b"}),
    Advice("Send one and any number", SCORE, {"text_1": ["a"] * 2, "text_2": ["b"] * 3},
           {"text_1": ["a"] * 2, "text_2": ["b"] * 2}),
    Advice("leave 'typical_p' out, and set 'top_p'", GENERATE, generates(typical_p=0.5), generates(top_p=0.5)),
    Advice("set 'watermark' to false", GENERATE, generates(watermark=True), generates(watermark=False)),
    Advice("leave 'best_of' out", GENERATE, generates(best_of=2), generates()),
    Advice("Send /v1/completions with 'logprobs'", GENERATE, generates(top_n_tokens=2), generates()),
    Advice("Send 'grammar' or 'response_format', not both", GENERATE,
           generates(grammar={"type": "json", "value": LIGHT}, response_format={"type": "json_object"}),
           generates(grammar={"type": "json", "value": LIGHT})),
    Advice("Send seconds as a number", "/api/chat", {**OLLAMA, "keep_alive": "5 minutes"},
           {**OLLAMA, "keep_alive": "5m", "options": {"num_predict": 2}}),
    Advice("leave 'suffix' out", "/api/generate", {**PROMPT, "suffix": "b"}, PROMPT),
    Advice("leave 'template' out, or send 'raw': true", "/api/generate", {**PROMPT, "template": "b"}, PROMPT),
    Advice("send the conversation to /api/chat", "/api/generate", {**PROMPT, "context": [1]}, PROMPT),
    Advice("Leave 'think' out", "/api/chat", {**OLLAMA, "think": True}, OLLAMA),
    Advice("Leave 'images' out", "/api/chat", {**OLLAMA, "messages": [{**HELLO[0], "images": ["aaaa"]}]}, OLLAMA),
]  # fmt: skip
FORMS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("would change the answer, and no model here can do it: leave it out", {"beam_size": "5"}, {}),
    ("Send what is in 'kwargs' as fields", {"kwargs": '{"prompt": "a"}'}, {"prompt": "a"}),
    ("Leave 'include' out", {"include": "logprobs"}, {}),
    ("Send it in 'language', or leave it out", {"languages": ["en", "de"]}, {"language": "en"}),
    ("leave one out", {"chunking_strategy": "auto", "vad_filter": "false"}, {"chunking_strategy": "auto"}),
    ("Send an ISO 639-1 code such as 'en'", {"language": "xx"}, {"language": "en"}),
]
"""Form fields of a request with a recording."""


def advice_texts() -> Iterator[tuple[str, str]]:
    """Yield place and text of each error with advice that readers of requests raise."""
    for reader in READERS:
        for path in [ROOT / reader] if reader.endswith(".py") else sorted((ROOT / reader).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ERRORS and call.args:
                    parts = [p.value for p in ast.walk(call.args[0]) if isinstance(p, ast.Constant)]
                    text = "".join(part for part in parts if isinstance(part, str))
                    if ADVISES.search(text):
                        yield f"{path.relative_to(ROOT)}:{call.lineno}", text


def test_every_text_with_advice_is_followed_here_or_in_another_test() -> None:
    known = {*(advice.text for advice in TABLE), *(text for text, _, _ in FORMS), *UPLOADS, *OTHER_TESTS}
    found = dict(advice_texts())
    assert len(found) > 40
    missing = {place: text for place, text in found.items() if not any(_plain(one) in _plain(text) for one in known)}
    assert not missing


def _plain(text: str) -> str:
    """Remove quotes and spaces, where values from the request may be."""
    return re.sub(r"[\s']", "", text)


@pytest.mark.real
@pytest.mark.parametrize("advice", TABLE, ids=lambda advice: f"{advice.path} {advice.text}"[:70])
def test_who_follows_it_succeeds(server: Server, advice: Advice) -> None:
    common: dict[str, Any] = {"model": MODEL, "max_tokens": 2} if advice.path in WORDS else {}
    if advice.path == RESPONSES:
        del common["max_tokens"]
    common |= WORDS.get(advice.path, {})
    strict = {"Prefer": "handling=strict"} if advice.strict else {}
    refused = server.http.post(advice.path, json={**common, **advice.bad}, headers=strict)
    assert 400 <= refused.status_code < 500, refused.text
    assert _plain(advice.text) in _plain(message_of(refused))
    followed = server.http.post(advice.path, json={**common, **advice.good}, headers=strict)
    assert followed.status_code == 200, followed.text


def message_of(answer: httpx.Response) -> str:
    body = answer.json()
    error = body.get("error", body)
    message = error if isinstance(error, str) else error["message"]
    assert isinstance(message, str)
    return message


def recording(http: httpx.Client, fields: dict[str, Any]) -> httpx.Response:
    sound = (PACK / "samples" / "kitchen-light.wav").read_bytes()
    return http.post(SPEECH, data={"model": "starter-speech", **fields}, files={"file": ("a.wav", sound)})


@pytest.mark.real
@pytest.mark.parametrize(("text", "bad", "good"), FORMS, ids=lambda value: str(value)[:30])
def test_a_form_that_follows_it_succeeds(server: Server, text: str, bad: dict[str, Any], good: dict[str, Any]) -> None:
    refused = recording(server.http, bad)
    assert refused.status_code == 400
    assert text in message_of(refused)
    assert recording(server.http, good).status_code == 200


UPLOADS = (
    "Send multipart/form-data with the recording as its field 'file'",
    "Send the form as multipart/form-data with a boundary",
    "in the field 'file'",
    "Send one 'file' per request",
    "Send JSON with Content-Type: application/json",
    "Send multipart/form-data with the bytes as its field 'file', and 'purpose'",
    "send it as 'file'",
    "with curl as -F file=@name",
)


@pytest.mark.real
def test_what_is_no_form_is_sent_as_one(server: Server) -> None:
    def post(path: str, kind: str, body: bytes) -> str:
        answer = server.http.post(path, content=body, headers={"Content-Type": kind})
        assert answer.status_code in (400, 415)
        return message_of(answer)

    assert UPLOADS[0] in post(f"{SPEECH}?model=starter-speech", "audio/wav", b"RIFF")
    assert UPLOADS[1] in post(SPEECH, "application/json", b'{"model": "starter-speech", "file": "x"}')
    assert UPLOADS[1] in post(SPEECH, "multipart/form-data", b"")
    none = server.http.post(SPEECH, files={"model": (None, "starter-speech")})
    assert UPLOADS[2] in message_of(none)
    two = [("file", ("a.wav", b"a")), ("file", ("b.wav", b"b"))]
    assert UPLOADS[3] in message_of(server.http.post(SPEECH, data={"model": "starter-speech"}, files=two))
    other = server.http.post(SPEECH, data={"model": "starter-speech"}, files={"audio": ("a.wav", b"a")})
    assert UPLOADS[6] in message_of(other)
    text = server.http.post(SPEECH, files={"model": (None, "starter-speech"), "file": (None, "a.wav")})
    assert UPLOADS[7] in message_of(text)
    assert recording(server.http, {}).status_code == 200
    assert UPLOADS[4] in post(CHAT, "text/plain", b"{}")
    assert UPLOADS[5] in post("/v1/files", "application/octet-stream", b"abc")
    file = server.http.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"abc")})
    assert file.status_code == 200, file.text


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": 5}}


@pytest.mark.real
@pytest.mark.parametrize(
    ("turns", "param"),
    [
        ([{"role": "tool", "tool_call_id": "c1", "content": 5}], "messages[1].content"),
        ([{"role": "user", "content": 5}], "messages[1].content"),
        ([{"role": "assistant", "tool_calls": [CALL]}], "messages[1].tool_calls[0].function.arguments"),
        ([{"role": "user", "content": [{"type": "movie"}]}], "messages[1].content[0].type"),
    ],
)
def test_a_message_is_judged_as_the_kind_that_it_is(server: Server, turns: list[Any], param: str) -> None:
    body = {"model": MODEL, "messages": [*HELLO, *turns]}
    error = server.http.post(CHAT, json=body).json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    for word in ("role", "custom", "author"):
        assert word not in error["message"]
