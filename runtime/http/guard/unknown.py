"""What is told of a path that is not here: where the call is, or what there is instead of it."""

import re

from registry.base.wording import quoted
from registry.errors import NotFound
from runtime.http.routes import routes

PATHS = frozenset(path for path, _, _ in routes())

INSTEAD = (
    (r"images/.*|sdapi/.*|videos?(/.*)?", "No pictures are made here. Chat models that see take them in messages."),
    (r"audio/(speech|voices)|tts", "No speech is made here. It is heard by /v1/audio/transcriptions."),
    (r"moderations", "There is no moderation here. Ask a chat model, with a JSON schema for its answer."),
    (r"classify|predict", "Texts are put into no classes here. /score scores pairs of texts with a reranker."),
    (r"embed_(all|sparse)", "Models here make one dense vector of each text: /embed."),
    (r"similarity", "Take the product of two vectors of /embed, or a reranker's /score."),
    (r"pooling", "/v1/embeddings has an embedding model's vectors, and /score a reranker's scores."),
    (r"info|infinity/models|models/(available|capabilities)", "/v1/models tells what there is, and how much it reads."),
    (
        r"api/(create|copy|push|blobs/.*)",
        "Models have recipes here, and further names are aliases: see docs/models.md.",
    ),
    (r"models/(apply|import.*|jobs.*|delete/.*)|model_registrations/.*", "Models are added by POST /v1/models."),
    (r"healthz|livez", "/health/live tells that the server lives."),
    (r"readyz", "/health/ready tells that it can answer."),
    (r"edits|engines/.*", "Send a prompt to /v1/completions, or messages to /v1/chat/completions."),
    (r"assistants.*|threads.*|conversations.*", "Nothing is kept here: send the whole conversation to /v1/responses."),
)
"""Calls of other servers by their paths, without the /v1 in front, and what is told of them. See docs/migrate.md."""
_INSTEAD = [(re.compile(pattern), text) for pattern, text in INSTEAD]


def unknown(path: str) -> NotFound:
    """The error for a path that is not here."""
    there = path.rstrip("/")
    bare = there.removeprefix("/v1").removeprefix("/")
    advice = next((text for pattern, text in _INSTEAD if pattern.fullmatch(bare)), None)
    near = next((one for one in (f"/v1/{bare}", f"/{bare}", there.removeprefix("/api")) if one in PATHS), None)
    if advice is None and near is not None:
        advice = f"It is at {near}. Some clients' address ends in /v1, and others' does not: see docs/clients.md."
    return NotFound(f"There is no {quoted(path)} here. {advice or 'See /docs.'}", code="unknown_path")
