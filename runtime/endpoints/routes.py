"""Every path of the server in one list: (path, endpoint, methods)."""

from collections.abc import Callable
from typing import Any

from runtime.endpoints.adapters import AdapterEndpoints
from runtime.endpoints.audio import AudioEndpoints
from runtime.endpoints.chat import PATHS, ChatEndpoints
from runtime.endpoints.embeddings import EmbeddingEndpoints
from runtime.endpoints.generate import GenerateEndpoints
from runtime.endpoints.models import ModelEndpoints
from runtime.endpoints.operations import Operations
from runtime.endpoints.rerank import RerankEndpoints
from runtime.gateway import Gateway

Route = tuple[str, Callable[..., Any], list[str]]


def routes(gateway: Gateway) -> list[Route]:
    """What RuntimeSpec adds to LitServe's application."""
    chat, models = ChatEndpoints(gateway), ModelEndpoints(gateway)
    adapters, operations = AdapterEndpoints(gateway), Operations(gateway)
    found: list[Route] = [(path, chat.handle, ["POST"]) for path in PATHS]
    found += GenerateEndpoints(gateway).routes()
    found += EmbeddingEndpoints(gateway).routes()
    found += RerankEndpoints(gateway).routes()
    found += AudioEndpoints(gateway).routes()
    found += models.routes()
    found += adapters.routes()
    found += operations.routes()
    return found
