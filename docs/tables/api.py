"""All paths of the server, and which scope of a key opens them."""

from docs.tables.markdown import code, table
from runtime.http.guard.access import PUBLIC, RULES
from runtime.http.routes import routes
from tenants.caller import SCOPES, Scope

PAGES = {
    "/v1/adapters": "adapters.md",
    "/v1/load_lora_adapter": "adapters.md",
    "/v1/unload_lora_adapter": "adapters.md",
    "/v1/models": "models.md",
    "/v1/usage": "teams.md",
    "/v1/feedback": "costs.md",
    "/v1/usage/daily": "costs.md",
    "/v1/usage/comparison": "costs.md",
    "/v1/organization": "organization.md",
    "/v1/recipes": "models.md",
    "/v1/route": "routing.md",
    "/v1/providers": "providers.md",
    "/v1/requests": "console.md",
    "/v1/status": "monitor.md",
    "/health": "monitor.md",
    "/metrics": "monitor.md",
    "/ping": "monitor.md",
    "/version": "monitor.md",
    "/v1/cluster": "monitor.md",
    "/infinity/health": "monitor.md",
    "/v1/embeddings": "embeddings.md",
    "/embed": "embeddings.md",
    "/v1/rerank": "rerank.md",
    "/v2/rerank": "rerank.md",
    "/v1/v2/rerank": "rerank.md",
    "/infinity/rerank": "rerank.md",
    "/infinity/embeddings": "embeddings.md",
    "/rerank": "rerank.md",
    "/score": "rerank.md",
    "/v1/score": "rerank.md",
    "/v1/audio": "speech.md",
    "/v1/chat": "chat.md",
    "/v1/completions": "chat.md",
    "/v1/responses": "chat.md",
    "/v1/messages": "chat.md",
    "/tokenize": "chat.md",
    "/detokenize": "chat.md",
    "/generate": "generate.md",
    "/api": "ollama.md",
}
"""The page that tells about a path, by the path's beginning."""
BESIDE_RULES = {
    "infer": ["all calls that ask a model"],
    "paths": ["a folder of the server's machine as the source of an adapter or model, beside `adapters` or `models`"],
    "models": [code("/v1/models/{model}/recipe")],
    "none": ["the [console](console.md)'s pages", *map(code, ("GET /", *sorted(PUBLIC)))],
}
"""What the guard knows without a rule."""


def paths() -> str:
    """Path, methods and page. Raises StopIteration for a path that no page is known for."""
    found: dict[str, list[str]] = {}
    for path, _, methods in routes():
        found.setdefault(path.replace(":path}", "}"), []).extend(methods)
    rows = []
    for path, methods in found.items():
        if path == "/":
            rows.append((code(path), ", ".join(methods), "[generate](../generate.md)"))
            continue
        page = next(PAGES[start] for start in sorted(PAGES, key=len, reverse=True) if path.startswith(start))
        rows.append((code(path), ", ".join(methods), f"[{page.removesuffix('.md')}](../{page})"))
    return table(("path", "methods", "page"), rows)


def scopes() -> str:
    """Scope, and what it opens with what lies below it, as the guard's rules have it."""
    opened: dict[str, list[str]] = {word: list(BESIDE_RULES.get(word, ())) for word in (*Scope, "any", "none")}
    for start, (reading, changing) in RULES.items():
        if reading == changing:
            ways = [(reading, code(start))]
        else:
            ways = [(reading, code(f"GET {start}")), (changing, f"all else of {code(start)}")]
        for expected, displayed in ways:
            for word in ["any"] if expected == SCOPES else sorted(expected):
                opened[word].append(displayed)
    rows = [(code(word) if word in SCOPES else word, ", ".join(paths)) for word, paths in opened.items()]
    return table(("scope", "opens"), rows)
