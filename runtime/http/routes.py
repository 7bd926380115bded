"""Every path of the server in one list: (path, endpoint, methods)."""

from collections.abc import Callable
from typing import Any

from runtime.gateway.core import Gateway
from runtime.http.admin.adapters import AdapterEndpoints
from runtime.http.admin.combine import CombineEndpoint
from runtime.http.admin.models import ModelEndpoints
from runtime.http.admin.operations import Operations
from runtime.http.audio.endpoints import AudioEndpoints
from runtime.http.chat.endpoints import PATHS, ChatEndpoints
from runtime.http.embeddings.endpoints import EmbeddingEndpoints
from runtime.http.rerank.endpoints import RerankEndpoints
from runtime.http.text_generation.endpoints import GenerateEndpoints

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
    found += CombineEndpoint(gateway).routes()
    found += operations.routes()
    return found
