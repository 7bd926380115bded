"""Steers cases made from the OpenAPI document to the starter pack's models, so that they reach the engines.

A random case names an unknown model and gets a 404. So most cases get real names, adapters and a recording instead of
made-up ones, and ask for few tokens. The others stay as they are.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.system.serving import PACK

MODELS = ("starter-chat", "starter-embed", "starter-rerank", "starter-speech")
ADAPTERS = ("uppercase", "starter-chat:last-word", "acronym@v1")
FOLDERS = {name: PACK / "adapters" / name for name in ("rot13", "acronym", "sentiment")}
OWN = ("fuzz-a", "fuzz-b", "starter-chat:fuzz-c")
"""Adapters that the cases register, change and remove."""
ROUTERS, PROJECTS = ("auto", "fuzz-r"), ("fuzz", "fuzz-2")
TASKS: Mapping[str, tuple[str, ...]] = {
    "/v1/embeddings": ("starter-embed", "embed"),
    "/embed": ("starter-embed",),
    "/v1/audio": ("starter-speech", "transcribe"),
    "/v1/rerank": ("starter-rerank", "rerank"),
    "/v2/rerank": ("starter-rerank",),
    "/rerank": ("starter-rerank",),
    "/score": ("starter-rerank",),
    "/v1/score": ("starter-rerank",),
    "/v1/ranking": ("starter-rerank",),
}
"""Start of a path to its models. All other paths are for chat."""
FEW_TOKENS = 6
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
MANY = 4
"""Most answers to one request that steered cases ask for."""


def models_for(path: str) -> tuple[str, ...]:
    for start, names in TASKS.items():
        if path.startswith(start):
            return names
    return ("starter-chat", "chat", *ADAPTERS)


def steer(case: Any, seed: int) -> None:
    """Change `case` in place; the same `seed` makes the same change. Every fourth seed leaves it alone."""
    if seed % 4 == 0:
        return
    random = Random(seed)
    path = case.operation.path
    if case.path_parameters:
        _paths(case.path_parameters, path, random, removes=case.method == "DELETE" and path.endswith("/{name}"))
    if case.query:
        for name, names in (("model", models_for(path)), ("base", ("starter-chat",)), ("version", ("v1", "v2"))):
            if name in case.query:
                case.query[name] = random.choice(names)
    if isinstance(case.body, dict):
        _BODIES.get(path, _inference)(case.body, path, random)


def _paths(parameters: dict[str, Any], path: str, random: Random, *, removes: bool) -> None:
    if "model" in parameters:
        # Unloading and loading costs seconds, so most cases use the model that loads fastest.
        names = ("starter-embed", "starter-rerank", "embed", "uppercase")
        parameters["model"] = random.choice(names if path.endswith("load") else (*MODELS, *names, *OWN))
    if "project" in parameters:
        parameters["project"] = random.choice(PROJECTS)
    if path.startswith("/v1/routers"):
        if "name" in parameters:
            parameters["name"] = ROUTERS[1] if removes or "{alias}" in path else random.choice(ROUTERS)
    elif "name" in parameters:
        # Cases only remove what they have registered, as other cases and the last check need the pack's adapters.
        parameters["name"] = random.choice(OWN if removes or "{alias}" in path else (*OWN, *ADAPTERS))
    if "alias" in parameters:
        parameters["alias"] = random.choice(("prod", "next"))


def _inference(body: dict[str, Any], path: str, random: Random) -> None:
    if "model" in body:
        body["model"] = random.choice(models_for(path))
    body.pop("adapter_id", None)
    if "file" in body and random.random() < 0.7:
        body["file"] = random.choice(_recordings())
    if models_for(path)[0] != "starter-chat" or "tokenize" in path:
        return
    if path in _LIMITED:
        body[_LIMITED[path]] = random.randint(1, FEW_TOKENS)
        for other in LIMITS:
            if other != _LIMITED[path]:
                body.pop(other, None)
    if isinstance(body.get("n"), int):
        body["n"] = min(body["n"], MANY)
    for name in list(body):
        if name in GOOD:
            if random.random() < 0.7:
                body[name] = GOOD[name]
        elif name not in KNOWN and random.random() < 0.8:
            del body[name]


_LIMITED = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}
KNOWN = {"model", "n", "stream", *LIMITS}
"""Fields that stay as they are, besides those in GOOD."""
GOOD: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": "hello"}], "prompt": "hello", "input": "hello", "tokens": [104, 105],
    "system": "be brief", "instructions": "be brief", "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
    "seed": 7, "stop": ["x"], "stop_sequences": ["x"], "frequency_penalty": 0.1, "presence_penalty": 0.1,
    "repetition_penalty": 1.1, "logit_bias": {"120": -5}, "stream_options": None, "user": "somebody", "logprobs": 1,
    "top_logprobs": 2, "echo": False, "suffix": None, "tools": [], "tool_choice": None, "parallel_tool_calls": True,
    "response_format": {"type": "text"}, "text": {"format": {"type": "text"}}, "add_special_tokens": False,
    "return_token_strs": True,
}  # fmt: skip
"""Values that the chat engine accepts."""


def _recordings() -> list[bytes]:
    files = [*sorted((PACK / "samples").glob("*.wav"))]
    whole = files[0].read_bytes()
    return [whole, whole[:2000], whole[:44], b"RIFF" + whole[8:2000]]


def _registration(body: dict[str, Any], _path: str, random: Random) -> None:
    for name, value in (
        ("name", random.choice(("fuzz-a", "fuzz-b", "fuzz-c"))),
        ("base", "starter-chat"),
        ("source", {"path": str(random.choice([*FOLDERS.values(), PACK]))}),
        ("alias", "prod"),
        ("lora_name", random.choice(("fuzz-a", "fuzz-b"))),
        ("lora_path", str(random.choice([*FOLDERS.values(), PACK]))),
        ("base_model_name", "starter-chat"),
    ):
        if name in body:
            body[name] = value


def _version(body: dict[str, Any], _path: str, random: Random) -> None:
    if "version" in body:
        body["version"] = random.choice(("v1", "v2", "v9"))


def _generate(body: dict[str, Any], path: str, random: Random) -> None:
    if "model" in body:
        body["model"] = random.choice(models_for(path))
    if random.random() < 0.7:
        body["inputs"] = "hello"
    if random.random() < 0.9 and not isinstance(body.get("parameters"), dict):
        body["parameters"] = {}  # an answer without a limit fills the whole context
    parameters = body.get("parameters")
    if not isinstance(parameters, dict):
        return
    parameters["max_new_tokens"] = random.randint(1, FEW_TOKENS)
    for name in list(parameters):
        if name == "adapter_id":
            parameters[name] = random.choice((None, "uppercase", "acronym@v1"))
            body["model"] = "starter-chat"
        elif name in GENERATED:
            if random.random() < 0.7:
                parameters[name] = GENERATED[name]
        elif name != "max_new_tokens" and random.random() < 0.8:
            del parameters[name]


GENERATED: Mapping[str, Any] = {
    "do_sample": True, "temperature": 0.5, "top_k": 5, "top_p": 0.9, "seed": 7, "stop": ["x"],
    "stop_sequences": ["y"], "repetition_penalty": 1.1, "frequency_penalty": 0.1, "ignore_eos_token": True,
    "truncate": 4, "return_full_text": True, "details": True, "decoder_input_details": True,
    "grammar": {"type": "regex", "value": "[a-z]+"}, "response_format": None, "adapter_source": "hub",
    "watermark": False, "best_of": 1, "top_n_tokens": 0, "return_k_alternatives": 0, "apply_chat_template": False,
    "merged_adapters": None, "api_token": "t",
}  # fmt: skip
"""Parameters of text generation that the chat engine accepts."""


def _router(body: dict[str, Any], _path: str, random: Random) -> None:
    """Mostly make a valid router over the starter pack's names."""
    if random.random() < 0.7:
        body |= {"id": "fuzz-r", "targets": [{"name": "starter-chat"}, {"name": "iso-date"}], "default": "starter-chat"}
        for name in ("rules", "intents", "complexity", "fallbacks", "source"):
            body.pop(name, None)


def _project(body: dict[str, Any], _path: str, random: Random) -> None:
    if "name" in body and random.random() < 0.7:
        body["name"] = "Fuzz"


_BODIES: Mapping[str, Callable[[dict[str, Any], str, Random], None]] = {
    "/v1/adapters": _registration,
    "/v1/load_lora_adapter": _registration,
    "/v1/unload_lora_adapter": _registration,
    "/v1/adapters/{name:path}/aliases/{alias}": _version,
    "/v1/adapters/{name:path}/rollback": _version,
    "/v1/routers": _router,
    "/v1/routers/{name}/aliases/{alias}": _version,
    "/v1/routers/{name}/rollback": _version,
    "/v1/organization/projects": _project,
    "/generate": _generate,
    "/generate_stream": _generate,
    "/": _generate,
}
