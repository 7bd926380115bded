"""Fields of requests that are ignored with a warning, by dialect."""

from collections.abc import Collection

from docs.tables.markdown import code, table
from models.chat.requests import fields
from models.chat.requests.request import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from runtime.http.audio import fields as audio
from runtime.http.bodies import ADAPTER_FIELDS
from runtime.http.chat.endpoints import VLLM
from runtime.http.cohere.endpoints import WITHOUT_EFFECT
from runtime.http.embeddings import bodies as embeddings
from runtime.http.rerank import bodies as rerank

CLASSES = {
    CHAT: "ChatCompletionRequest",
    COMPLETIONS: "CompletionRequest",
    RESPONSES: "ResponsesRequest",
    MESSAGES: "AnthropicRequest",
}
COHERE = "/v2/chat"
OLLAMA = ("/api/chat", "/api/generate")
OTHERS: tuple[tuple[tuple[str, ...], Collection[str]], ...] = (
    (("/v1/embeddings", "/embed"), embeddings.CHANGING),
    (("/v1/rerank", "/v2/rerank", "/rerank", "/score", "/v1/ranking"), rerank.CHANGING),
    (("/v1/audio/transcriptions", "/v1/audio/translations"), audio.CHANGING),
    (("/generate",), ADAPTER_FIELDS),
    (("/api/embed", "/v1/embed", "/v2/embed"), ()),
)
HEAD = ("call", "left out with a warning")


def known(path: str) -> frozenset[str]:
    """Return the fields of a dialect's class in vLLM."""
    return frozenset(VLLM[CLASSES[path]]["properties"])


def left_out(path: str) -> dict[str, str]:
    """Return fields that are left out with a warning, and when; '' means always."""
    hints = dict.fromkeys(sorted(fields.HINTS - known(path)), "")
    return {**hints, **fields.LEFT_OUT.get(path, {})}


def without_effect() -> str:
    """Return a row for each dialect."""
    rows = []
    for path in CLASSES:
        words = [f"{code(name)} {when}".strip() for name, when in left_out(path).items()]
        words += [f"unknown fields of {code(name)}" for name in fields.INNER.get(path, ())]
        if path in (CHAT, RESPONSES, MESSAGES):
            words.append(f"{code('uniqueItems')} of tools that must be called and are not {code('strict')}")
        if path in (RESPONSES, MESSAGES):
            words.append("tools of the types below")
        rows.append((code(path), "; ".join([*words, "unknown fields"])))
    cohere = "; ".join([*map(code, WITHOUT_EFFECT), _but(ADAPTER_FIELDS)])
    rows.append((code(COHERE), cohere))
    rows.append((", ".join(map(code, OLLAMA)), f"unknown {code('options')}; {_but(ADAPTER_FIELDS)}"))
    rows += [(", ".join(map(code, paths)), _but(changing)) for paths, changing in OTHERS]
    return table(HEAD, rows)


def _but(changing: Collection[str]) -> str:
    """Return 'unknown fields' and the fields of other servers that are refused because they change the answer."""
    return "unknown fields" + (f"; refused: {', '.join(map(code, sorted(changing)))}" if changing else "")


def silent() -> str:
    """Return fields that clients send by default, which are left out without a warning."""
    return ", ".join(map(code, sorted(fields.WITHOUT_EFFECT)))


def hosted() -> str:
    """Return the prefixes of the types of tools that a vendor runs."""
    return ", ".join(code(f"{word}…") for word in fields.HOSTED.pattern.strip("()").split("|"))
