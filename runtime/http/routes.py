"""Every route: importing the modules of handlers fills the route table."""

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
"""Paths whose body is JSON: what a line of a batch may name."""
INFERENCE_PATHS = frozenset(route.path for route in ROUTES if route.is_inference)
"""Their handlers take a request and nothing else."""


def _order(route: Route) -> tuple[bool, bool, int]:
    """Sort key: whole paths of inference first, since each route before costs a request half a microsecond.

    Paths that end in any name come last, the shortest at the end.
    """
    is_whole = route.is_inference and "{" not in route.path
    return route.path.endswith(":path}"), not is_whole, -route.path.count("/")


ROUTES.sort(key=_order)


def routes() -> list[tuple[str, Callable[..., Awaitable[Response]], list[str]]]:
    """Path, handler and methods, as LitServe's application takes them."""
    return [(route.path, route.handler, [route.method]) for route in ROUTES]
