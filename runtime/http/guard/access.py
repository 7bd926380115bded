"""Which scope a path needs. What no rule knows is not there for anybody who shows a key."""

from collections.abc import Mapping

from runtime.http.audio.endpoints import TASKS
from runtime.http.errors import Dialect
from runtime.http.guard.origin import READS
from runtime.http.guard.unknown import unknown
from runtime.http.routes import ENDPOINTS, OLLAMA_ENDPOINTS
from tenants.caller import SCOPES, Scope

PUBLIC = frozenset(
    (
        "/health", "/health/live", "/health/ready", "/infinity/health", "/ping", "/version", "/api/version",
        "/v1/cluster/auth", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json",
    )
)  # fmt: skip
"""For probes and people: to who shows no key they tell nothing of what is here."""
_ASSETS = ("/docs/assets/", "/console/")
"""Below them nothing needs a key: the console asks by itself who may see a page, and shows others where to sign in."""
_INFERENCE = frozenset((*ENDPOINTS, *(endpoint.path for endpoint in OLLAMA_ENDPOINTS), *TASKS))
_INFER, _ADAPTERS, _MODELS = (frozenset((scope,)) for scope in (Scope.INFER, Scope.ADAPTERS, Scope.MODELS))
_ADMIN = frozenset((Scope.ADMIN,))
_USAGE = frozenset((Scope.USAGE, Scope.ADMIN))
RULES: Mapping[str, tuple[frozenset[Scope], frozenset[Scope]]] = {
    "/v1/models": (SCOPES, _MODELS),
    "/v1/adapters": (_ADAPTERS, _ADAPTERS),
    "/v1/load_lora_adapter": (_ADAPTERS, _ADAPTERS),
    "/v1/unload_lora_adapter": (_ADAPTERS, _ADAPTERS),
    "/v1/recipes": (_MODELS, _MODELS),
    "/v1/route": (_INFER, _INFER),
    "/v1/routers": (_MODELS, _MODELS),
    "/api/tags": (SCOPES, SCOPES),
    "/api/ps": (SCOPES, SCOPES),
    "/api/show": (SCOPES, SCOPES),
    "/api/pull": (_MODELS, _MODELS),
    "/api/delete": (_ADAPTERS | _MODELS, _ADAPTERS | _MODELS),
    "/v1/providers": (_MODELS, _MODELS),
    "/v1/status": (_MODELS, _MODELS),
    "/v1/requests": (SCOPES, SCOPES),
    "/metrics": (_MODELS, _MODELS),
    "/v1/usage": (_USAGE, _USAGE),
    "/v1/feedback": (_INFER, _INFER),
    "/v1/organization": (_ADMIN, _ADMIN),
}
"""The beginning of a path: scopes of which one is needed to read, and to change something."""


def required_scopes(method: str, path: str) -> frozenset[Scope] | None:
    """Scopes of which a key needs one; None: no key is needed. Raises NotFound."""
    if path in PUBLIC or path == "/console" or path.startswith(_ASSETS):
        return None
    if path == "/" and method in READS:
        return None
    if path in _INFERENCE:
        return _INFER
    if path.startswith("/v1/models/") and path.endswith("/recipe"):
        return _MODELS
    for start, (reading, changing) in RULES.items():
        if path == start or path.startswith(f"{start}/"):
            return reading if method in READS else changing
    raise unknown(path)


def dialect_of(path: str) -> Dialect:
    """Of a path's errors, as long as its body is not read."""
    if path.startswith("/api/"):
        return Dialect.OLLAMA
    endpoint = ENDPOINTS.get(path)
    return Dialect.OPENAI if endpoint is None else endpoint.dialect
