"""All paths of the server, and the key scopes that open them."""

from docs.tables.markdown import code, table
from runtime.http.guard.access import PAGES as OPEN_PAGES
from runtime.http.route import Route
from runtime.http.routes import ROUTES, routes
from tenants.caller import SCOPES, Scope

PAGES = {
    "/v1/adapters": "adapters.md",
    "/v1/merged": "combine.md",
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
    "/v1/fleet": "fleet.md",
    "/v1/providers": "providers.md",
    "/v1/requests": "console.md",
    "/v1/status": "monitor.md",
    "/v1/signal": "devices.md",
    "/health": "monitor.md",
    "/metrics": "monitor.md",
    "/ping": "monitor.md",
    "/version": "monitor.md",
    "/v1/embeddings": "embeddings.md",
    "/embed": "embeddings.md",
    "/v1/rerank": "rerank.md",
    "/v2/rerank": "rerank.md",
    "/v2/chat": "chat.md",
    "/v1/embed": "embeddings.md",
    "/v2/embed": "embeddings.md",
    "/rerank": "rerank.md",
    "/score": "rerank.md",
    "/v1/score": "rerank.md",
    "/v1/ranking": "rerank.md",
    "/v1/audio": "speech.md",
    "/v1/chat": "chat.md",
    "/v1/completions": "chat.md",
    "/v1/responses": "chat.md",
    "/v1/messages": "chat.md",
    "/v1/files": "batches.md",
    "/v1/batch": "batches.md",
    "/v1/webhook": "callbacks.md",
    "/v1/callback_secret": "callbacks.md",
    "/v1/messages/batches": "batches.md",
    "/tokenize": "chat.md",
    "/detokenize": "chat.md",
    "/generate": "generate.md",
    "/api": "ollama.md",
}
"""The page that describes a path, by the path's beginning."""
NOT_PATHS = {
    "infer": ["all calls that run a model"],
    "paths": ["with `adapters` or `models`: a folder of the server's machine as the source of an adapter or model"],
    "none": ["the [console](../console.md)'s pages", *map(code, (f"GET {path}" for path in sorted(OPEN_PAGES)))],
}
"""What a scope permits besides single paths."""


def paths() -> str:
    """Return path, methods and page. Raises StopIteration for a path without a page in PAGES."""
    by_path: dict[str, list[str]] = {}
    for path, _, methods in routes():
        by_path.setdefault(path.replace(":path}", "}"), []).extend(methods)
    rows = []
    for path, methods in by_path.items():
        if path == "/":
            rows.append((code(path), ", ".join(methods), "[generate](../generate.md)"))
            continue
        page = next(PAGES[start] for start in sorted(PAGES, key=len, reverse=True) if path.startswith(start))
        rows.append((code(path), ", ".join(methods), f"[{page.removesuffix('.md')}](../{page})"))
    return table(("path", "methods", "page"), rows)


def scopes() -> str:
    """Return each scope with its routes, which are one entry per prefix if all of its routes need the same scopes."""
    opened: dict[str, list[str]] = {word: list(NOT_PATHS.get(word, ())) for word in (*Scope, "any", "none")}
    by_prefix: dict[str, list[Route]] = {}
    for route in ROUTES:
        if not route.is_inference:
            by_prefix.setdefault("/".join(route.documented_path.split("/")[:3]), []).append(route)
    for prefix, routes_below in sorted(by_prefix.items()):
        by_scopes: dict[frozenset[Scope], list[Route]] = {}
        for route in routes_below:
            by_scopes.setdefault(route.scopes, []).append(route)
        for needed, same in by_scopes.items():
            names = [f"{route.method} {route.documented_path}" for route in same] if len(by_scopes) > 1 else [prefix]
            words: list[str] = ["any"] if needed == SCOPES else [*sorted(needed)] or ["none"]
            for word in words:
                opened[word] += map(code, names)
    rows = [(code(word) if word in SCOPES else word, ", ".join(paths)) for word, paths in opened.items()]
    return table(("scope", "opens"), rows)
