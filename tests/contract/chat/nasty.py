"""Bodies that a careless or hostile client may send. Each must be refused or answered, and none may break anything."""

import json
from typing import Any

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "hi"}]


def nested_schema(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _format(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def _tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function}]}


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "max_tokens negative": (CHAT, {"max_tokens": -2}),
    "max_tokens a word": (CHAT, {"max_tokens": "many"}),
    "n huge": (CHAT, {"n": 10**6}),
    "n over 128": (CHAT, {"n": 129}),
    "n zero": (CHAT, {"n": 0}),
    "beams": (CHAT, {"use_beam_search": True, "n": 2}),
    "beams of a completion": (TEXT, {"use_beam_search": True, "n": 2}),
    "beams huge": (CHAT, {"use_beam_search": True, "n": 100_000}),
    "temperature negative": (CHAT, {"temperature": -1}),
    "temperature huge": (CHAT, {"temperature": 1e300}),
    "top_p two": (CHAT, {"top_p": 2}),
    "top_k negative": (CHAT, {"top_k": -5}),
    "seed beyond 64 bits": (CHAT, {"seed": 2**70}),
    "bias outside the vocabulary": (CHAT, {"logit_bias": {"999999": 1}}),
    "bias negative": (CHAT, {"logit_bias": {"-5": 1}}),
    "bias beyond 64 bits": (CHAT, {"logit_bias": {str(2**70): 1}}),
    "bias on a word": (CHAT, {"logit_bias": {"abc": 1}}),
    "logprobs too many": (CHAT, {"logprobs": True, "top_logprobs": 1000}),
    "prompt logprobs too many": (CHAT, {"prompt_logprobs": 1000}),
    "stop list huge": (CHAT, {"stop": ["xxxxx"] * 5000}),
    "stop ids outside the vocabulary": (CHAT, {"stop_token_ids": [2**70]}),
    "allowed ids none": (CHAT, {"allowed_token_ids": []}),
    "allowed ids outside": (CHAT, {"allowed_token_ids": [99_999]}),
    "regex broken": (CHAT, {"structured_outputs": {"regex": "((["}}),
    "regex looks ahead": (CHAT, {"structured_outputs": {"regex": "(?=a)b"}}),
    "grammar broken": (CHAT, {"structured_outputs": {"grammar": "this is none"}}),
    "grammar deep": (CHAT, {"structured_outputs": {"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000}}),
    "choice empty": (CHAT, {"structured_outputs": {"choice": []}}),
    "two constraints": (CHAT, {"structured_outputs": {"choice": ["a"], "regex": "a"}}),
    "schema of no type": (CHAT, _format({"type": "foo"})),
    "schema points nowhere": (CHAT, _format({"$ref": "#/nope"})),
    "schema is itself": (CHAT, _format({"$ref": "#"})),
    "schema unsatisfiable": (CHAT, _format({"type": "integer", "minimum": 10, "maximum": 5})),
    "schema deep": (CHAT, _format(nested_schema(200))),
    "schema a word": (CHAT, _format("none")),
    "tools a word": (CHAT, {"tools": "x"}),
    "tool without function": (CHAT, {"tools": [{"type": "function"}]}),
    "tool schema a word": (CHAT, _tool(name="x", parameters="y")),
    "tool choice unknown": (
        CHAT,
        {**_tool(name="x", parameters={}), "tool_choice": {"type": "function", "function": {"name": "z"}}},
    ),
    "own template": (CHAT, {"chat_template": "{{ 1/0 }}"}),
    "processors by name": (CHAT, {"logits_processors": ["os.system"]}),
    "template words": (CHAT, {"chat_template_kwargs": {"messages": 5}}),
    "messages empty": (CHAT, {"messages": []}),
    "messages a number": (CHAT, {"messages": 5}),
    "message without role": (CHAT, {"messages": [{"content": "x"}]}),
    "content a number": (CHAT, {"messages": [{"role": "user", "content": 5}]}),
    "image for a text model": (
        CHAT,
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
    ),
    "prompt over the context": (CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}),
    "prompt of megabytes": (CHAT, {"messages": [{"role": "user", "content": "x" * 3_000_000}]}),
    "half a surrogate": (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}),
    "tokens outside the vocabulary": (TEXT, {"prompt": [10**6]}),
    "tokens beyond 64 bits": (TEXT, {"prompt": [2**70]}),
    "tokens negative": (TEXT, {"prompt": [-1]}),
    "prompts too many": (TEXT, {"prompt": ["a"] * 3000}),
    "prompt empty": (TEXT, {"prompt": ""}),
    "embeds": (TEXT, {"prompt": "x", "prompt_embeds": "AAAA"}),
    "input missing": (RESPONSES, {}),
    "input of odd items": (RESPONSES, {"input": [{"type": "zzz"}]}),
    "response unknown": (RESPONSES, {"input": "x", "previous_response_id": "resp_x"}),
    "background": (RESPONSES, {"input": "x", "background": True}),
    "role of nobody's": (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}),
    "request id of 100 kB": (CHAT, {"request_id": "x" * 100_000}),
    "request id of two lines": (CHAT, {"request_id": "x\nlevel=error"}),
    "transfer of nothing": (CHAT, {"kv_transfer_params": {"do_remote_prefill": True}}),
    "priority": (TEXT, {"priority": -1}),
    "bias of 300,000": (CHAT, {"logit_bias": dict.fromkeys(map(str, range(300_000)), 1)}),
    "bad words of 3,000": (CHAT, {"bad_words": ["abc"] * 3_000}),
    "stops of 1,000": (CHAT, {"stop": ["x"] * 1_000}),
    "messages of 100,000": (CHAT, {"messages": [{"role": "user", "content": "x"}] * 100_000}),
    "logprobs of the prompt for 128": (TEXT, {"n": 128, "prompt_logprobs": 5}),
    "messages missing": (MESSAGES, {"max_tokens": 4}),
    "max_tokens missing": (MESSAGES, {"messages": HELLO}),
    "role unknown": (MESSAGES, {"messages": [{"role": "zzz", "content": "x"}], "max_tokens": 4}),
    "tokenize megabytes": ("/tokenize", {"prompt": "x" * 2_000_000}),
    "tokenize nothing": ("/tokenize", {}),
    "detokenize negative": ("/detokenize", {"tokens": [-1]}),
    "detokenize beyond 32 bits": ("/detokenize", {"tokens": [2**40]}),
    "detokenize outside": ("/detokenize", {"tokens": [5, 10**6]}),
}
"""Case -> (path, changes to a valid body). Each gets a 4xx."""

ANSWERED: dict[str, tuple[str, dict[str, Any]]] = {
    "stop empty": (CHAT, {"stop": ""}),
    "a field of nobody's": (CHAT, {"nonsense": 1}),
    "a vendor's own tool": (RESPONSES, {"input": "x", "tools": [{"type": "web_search"}]}),
    "cut to fit": (RESPONSES, {"input": "x", "truncation": "auto"}),
    "top_k beyond 32 bits": (CHAT, {"top_k": 2**40}),
    "penalty huge": (CHAT, {"repetition_penalty": 1e30}),
    "bias huge": (CHAT, {"logit_bias": {"5": 1e30}}),
    "bias on every token": (CHAT, {"logit_bias": {str(i): 1 for i in range(288)}}),
    "stop of 200 kB": (CHAT, {"stop": "x" * 200_000}),
    "max_tokens beyond 64 bits": (CHAT, {"max_tokens": 2**70}),
    "bad words many": (CHAT, {"bad_words": ["abc"] * 2048}),
    "regex that explodes": (CHAT, {"structured_outputs": {"regex": "((a+)+)+$"}}),
    "regex of a million": (CHAT, {"structured_outputs": {"regex": "(a{1,1000}){1,1000}"}}),
    "grammar that recurs to the left": (CHAT, {"structured_outputs": {"grammar": 'root ::= root "a" | "b"'}}),
    "schema of ten million letters": (CHAT, _format({"type": "string", "minLength": 10**7})),
    "special tokens in the text": (CHAT, {"messages": [{"role": "user", "content": "<|end|><|pad|>"}]}),
    "zero bytes": (CHAT, {"messages": [{"role": "user", "content": "\0\0"}]}),
    "prompt as long as fits": (TEXT, {"prompt": "x" * 511}),
}

RAW: dict[str, bytes] = {
    "nothing": b"",
    "half": b"{",
    "a list": b"[]",
    "a number": b"5",
    "null": b"null",
    "a list, deep": b'{"model":"tiny","messages":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "an object, deep": b'{"model":"tiny","x":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
    "NaN": b'{"model":"tiny","temperature":NaN,"messages":[{"role":"user","content":"x"}]}',
    "infinity": b'{"model":"tiny","temperature":1e999,"messages":[{"role":"user","content":"x"}]}',
    "a number of 5000 digits": b'{"model":"tiny","max_tokens":' + b"9" * 5000 + b',"messages":[]}',
    "no UTF-8": b'{"model":"tiny","messages":[{"role":"user","content":"\xff"}]}',
}


def body(path: str, changes: dict[str, Any], model: str) -> bytes:
    good: dict[str, Any] = {"model": model}
    if path == CHAT:
        good |= {"messages": HELLO, "max_tokens": 4}
    elif path == TEXT:
        good |= {"prompt": "hi", "max_tokens": 4}
    return json.dumps(good | changes).encode()
