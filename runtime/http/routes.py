"""All routes: importing the modules of handlers fills the route table."""

from collections.abc import Awaitable, Callable
from importlib import import_module

from fastapi.responses import Response

from runtime.http.chat.endpoints import ENDPOINTS as CHAT
from runtime.http.cohere.endpoints import ENDPOINTS as COHERE
from runtime.http.embeddings.endpoints import ENDPOINTS as EMBEDDINGS
from runtime.http.ollama.endpoints import ENDPOINTS as OLLAMA_ENDPOINTS
from runtime.http.rerank.endpoints import ENDPOINTS as RERANK
from runtime.http.route import ROUTES, Route
from runtime.http.text_generation.endpoints import ENDPOINTS as TEXT_GENERATION

__all__ = ["ENDPOINTS", "INFERENCE_PATHS", "OLLAMA_ENDPOINTS", "ROUTES", "routes"]
_MODULES = (
    "responses.endpoints", "audio.endpoints", "ollama.models", "admin.models", "admin.launch",
    "admin.adapters", "admin.operations", "admin.providers", "admin.usage", "admin.fleet", "routing.endpoints",
    "organization.usage", "organization.projects", "organization.keys", "batches.files",
    "batches.endpoints", "batches.messages", "batches.requests", "batches.deliveries", "batches.webhooks",
)  # fmt: skip
for _module in _MODULES:
    import_module(f"runtime.http.{_module}")

ENDPOINTS = {endpoint.path: endpoint for endpoint in (*CHAT, *COHERE, *TEXT_GENERATION, *EMBEDDINGS, *RERANK)}
"""Inference paths with a JSON body, which batch lines may name."""
INFERENCE_PATHS = frozenset(route.path for route in ROUTES if route.is_inference)
"""Paths whose handlers take only a request."""


def _order(route: Route) -> tuple[bool, bool, int]:
    """Sort key. Inference paths come first, since a request is compared with each route before its own.

    Paths that end in a variable come last, the shortest at the end.
    """
    is_whole = route.is_inference and "{" not in route.path
    return route.path.endswith(":path}"), not is_whole, -route.path.count("/")


ROUTES.sort(key=_order)


def routes() -> list[tuple[str, Callable[..., Awaitable[Response]], list[str]]]:
    """Path, handler and methods of each route, in the form that LitServe takes."""
    return [(route.path, route.handler, [route.method]) for route in ROUTES]
