"""What becomes of fields that have no effect, by dialect."""

from docs.tables.markdown import code, table
from models.chat.requests import fields
from models.chat.requests.request import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from runtime.http.chat.routes import VLLM
from runtime.http.cohere.endpoints import WITHOUT_EFFECT

CLASSES = {
    CHAT: "ChatCompletionRequest",
    COMPLETIONS: "CompletionRequest",
    RESPONSES: "ResponsesRequest",
    MESSAGES: "AnthropicRequest",
}
COHERE = "/v2/chat"
HEAD = ("call", "left out with a warning")


def known(path: str) -> frozenset[str]:
    """The fields of a dialect's class in vLLM."""
    return frozenset(VLLM[CLASSES[path]]["properties"])


def left_out(path: str) -> dict[str, str]:
    """Fields that are left out with a warning, and when: '' is always."""
    hints = dict.fromkeys(sorted(fields.HINTS - known(path)), "")
    return {**hints, **fields.LEFT_OUT.get(path, {})}


def without_effect() -> str:
    """A row for each dialect."""
    rows = []
    for path in CLASSES:
        words = [f"{code(name)} {when}".strip() for name, when in left_out(path).items()]
        words += [f"unknown fields of {code(name)}" for name in fields.INNER.get(path, ())]
        if path in (RESPONSES, MESSAGES):
            words.append("tools of the types below")
        rows.append((code(path), "; ".join([*words, "unknown fields"])))
    cohere = "; ".join([*map(code, WITHOUT_EFFECT), "unknown fields"])
    rows.append((code(COHERE), cohere))
    return table(HEAD, rows)


def silent() -> str:
    """Fields that clients send by themselves, and that no warning names."""
    return ", ".join(map(code, sorted(fields.WITHOUT_EFFECT)))


def hosted() -> str:
    """Types of tools that a vendor runs, by how they begin."""
    return ", ".join(code(f"{word}…") for word in fields.HOSTED.pattern.strip("()").split("|"))
