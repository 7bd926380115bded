"""Every path of the server in one list: (path, handler, methods)."""

from runtime.http.admin import adapters, combine, launch, models, operations, providers, requests, usage
from runtime.http.audio.endpoints import TASKS
from runtime.http.audio.endpoints import handle as audio
from runtime.http.chat.endpoints import ENDPOINTS as CHAT
from runtime.http.embeddings.endpoints import ENDPOINTS as EMBEDDINGS
from runtime.http.ollama import keep_alive as ollama_keep_alive
from runtime.http.ollama import models as ollama_models
from runtime.http.ollama.endpoints import ENDPOINTS as OLLAMA
from runtime.http.ollama.vectors import ENDPOINTS as OLLAMA_VECTORS
from runtime.http.organization import keys, projects, spending, used
from runtime.http.rerank.endpoints import ENDPOINTS as RERANK
from runtime.http.routing.endpoints import ROUTES as ROUTING
from runtime.http.sending import Route, handler
from runtime.http.text_generation.endpoints import ENDPOINTS as TEXT_GENERATION

ENDPOINTS = {endpoint.path: endpoint for endpoint in (*CHAT, *TEXT_GENERATION, *EMBEDDINGS, *RERANK)}
"""Paths whose body is JSON: what a line of a batch may name."""

OLLAMA_ENDPOINTS = (*OLLAMA, *OLLAMA_VECTORS)


INFERENCE_PATHS = frozenset((*ENDPOINTS, *(endpoint.path for endpoint in OLLAMA_ENDPOINTS), *TASKS))
"""Paths of inference: their handlers take a request and nothing else."""


def routes() -> list[Route]:
    """What is added to LitServe's application."""
    found: list[Route] = [(path, handler(endpoint), ["POST"]) for path, endpoint in ENDPOINTS.items()]
    found += [
        (endpoint.path, handler(endpoint, ollama_keep_alive.apply_keep_alive), ["POST"])
        for endpoint in OLLAMA_ENDPOINTS
    ]
    found += [(path, audio, ["POST"]) for path in TASKS]
    return [
        *found,
        *launch.ROUTES,
        *models.ROUTES,
        *launch.WHOLE,
        *adapters.ROUTES,
        *ROUTING,
        *combine.ROUTES,
        *operations.ROUTES,
        *providers.ROUTES,
        *requests.ROUTES,
        *usage.ROUTES,
        *used.ROUTES,
        *projects.ROUTES,
        *keys.ROUTES,
        *spending.ROUTES,
        *ollama_models.ROUTES,
    ]
