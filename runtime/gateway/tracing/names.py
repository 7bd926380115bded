"""Names of spans and attributes. Change them here: GenAI's are still drafts.

Of https://github.com/open-telemetry/semantic-conventions-genai as of November 2026. What has no name there begins with
`roundhouse.`. No attribute ever holds what was asked or answered.
"""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"

ERROR = "error.type"
METHOD, ROUTE, STATUS = "http.request.method", "http.route", "http.response.status_code"

REQUEST_ID = "roundhouse.request.id"
TEAM = "roundhouse.team"
CLASS = "roundhouse.class"
SOURCE = "roundhouse.source"
END = "roundhouse.end"
ADAPTER = "roundhouse.adapter"
ROUTER = "roundhouse.router"
ATTEMPT = "roundhouse.attempt"
AUDIO_SECONDS = "roundhouse.audio.seconds"
BATCH = "roundhouse.batch.size"

SYSTEM = "roundhouse"
"""`gen_ai.provider.name` of what this server answers by itself."""

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v2/chat": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/generate": "text_completion",
    "/generate_stream": "text_completion",
    "/": "text_completion",
    "/v1/embeddings": "embeddings",
    "/infinity/embeddings": "embeddings",
    "/v2/embed": "embeddings",
    "/embed": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
}
"""Operations that have a name in the conventions. For other paths it is their last part, such as rerank."""


def operation(path: str) -> str:
    """`gen_ai.operation.name` of an endpoint."""
    return OPERATIONS.get(path) or path.rsplit("/", 1)[-1]
