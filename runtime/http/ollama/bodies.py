"""Ollama's requests. Unknown fields are ignored, as in Ollama. Unsupported ones are refused or named in a header."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from registry.errors import BadRequest

MODEL = Meta(description="A model, an alias or an adapter. `name:latest` means `name`.", examples=["starter-chat"])
Model = Annotated[str, MODEL]
Share = Annotated[float, Meta(ge=0, le=1)]
Whole = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Format = Annotated[
    str | dict[str, Any] | None, Meta(description="`json`, or a JSON schema that the answer has to fit.")
]
KeepAlive = Annotated[
    int | float | str | None,
    Meta(
        description="0: the model leaves memory after the answer if nobody else uses it. All else changes nothing: a "
        "model stays until its room is needed."
    ),
]
Think = Annotated[
    bool | Literal["low", "medium", "high", "max"] | None,
    Meta(description="Whether a model that thinks does so before it answers; its own default where it is left out."),
]

LOAD_OPTIONS = frozenset(
    {
        "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_gpu", "num_thread", "numa", "use_mlock",
        "use_mmap", "vocab_only", "embedding_only",
    }
)  # fmt: skip
"""Options for how Ollama loads a model. Here the recipe decides that, and answers do not depend on it."""


class OllamaOptions(msgspec.Struct, kw_only=True):
    """Ollama's options that are supported. Others are named in X-Roundhouse-Warning."""

    num_predict: Annotated[Whole | None, Meta(description="Most tokens of the answer; 0 and below: no limit.")] = None
    num_ctx: Annotated[Whole | None, Meta(description="The recipe's context length counts, and no longer one.")] = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Share | None = None
    top_k: Annotated[Whole | None, Meta(description="0 and below: all tokens.")] = None
    min_p: Share | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None


class OllamaFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: dict[str, Any] = {}


class OllamaToolCall(msgspec.Struct, kw_only=True):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[str] | None, Meta(description="Base64, for models that see.")] = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: Annotated[str | None, Meta(description="Name of the function whose result this is.")] = None
    tool_call_id: str | None = None


class OllamaBody(msgspec.Struct, kw_only=True):
    """The common fields of chats and generations."""

    model: Model
    stream: Annotated[bool | None, Meta(description="Lines of JSON as they come: the default.")] = None
    format: Format = None
    options: Annotated[dict[str, Any] | None, Meta(description="See Ollama's `options`.")] = None
    think: Think = None
    keep_alive: KeepAlive = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class OllamaChatBody(OllamaBody, kw_only=True):
    """Ollama's /api/chat. Without messages it only loads the model."""

    messages: list[OllamaMessage] | None = None
    tools: Annotated[list[dict[str, Any]] | None, Meta(description="Functions, as OpenAI writes them.")] = None


class OllamaGenerateBody(OllamaBody, kw_only=True):
    """Ollama's /api/generate. Without a prompt it only loads the model."""

    prompt: str | None = None
    system: str | None = None
    images: Annotated[list[str] | None, Meta(description="Base64, for models that see.")] = None
    raw: Annotated[bool | None, Meta(description="The prompt is given to the model as it is: no template.")] = None
    suffix: Annotated[str | None, Meta(description="Only empty: models here write no middles.")] = None
    template: Annotated[str | None, Meta(description="Only empty: the model's own template counts.")] = None
    context: Annotated[list[int] | None, Meta(description="Only empty: send what was said to /api/chat.")] = None

    def refuse(self) -> None:
        """Raise BadRequest for fields that would otherwise be ignored silently."""
        for name, value, text in (
            ("suffix", self.suffix, "Models here write no text between two others: leave 'suffix' out."),
            ("template", self.template, "The model's own template counts: leave 'template' out, or send 'raw': true."),
            ("context", self.context, "Answers hold no 'context': send the conversation to /api/chat."),
            ("system", self.raw and self.system, "A raw prompt has no place for it: write 'system' into 'prompt'."),
            ("think", self.raw and self.think, "Thinking goes through the template: leave 'raw' out, or 'think'."),
            ("images", self.raw and self.images, "Images go through the template: leave 'raw' out."),
            ("logprobs", self.raw and self.logprobs, "With 'raw': true no logprobs are told: send /v1/completions."),
        ):
            if value:
                raise BadRequest(text, param=name, code="unsupported_value")


class OllamaEmbedBody(msgspec.Struct, kw_only=True):
    """Ollama's /api/embed. Without an input it only loads the model."""

    model: Model
    input: str | list[str] | None = None
    truncate: Annotated[bool | None, Meta(description="Cut inputs that are too long: the default.")] = None
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


class OllamaEmbeddingsBody(msgspec.Struct, kw_only=True):
    """Ollama's older /api/embeddings, for one text. Without it the model is only loaded."""

    model: Model
    prompt: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


class OllamaNameBody(msgspec.Struct, kw_only=True):
    """A model by name. `name` is Ollama's older field."""

    model: Model | None = None
    name: str | None = None

    @property
    def required_name(self) -> str:
        """The name. Raises BadRequest if there is none."""
        name = self.model or self.name
        if not name:
            raise BadRequest("Say which model in 'model'.", param="model")
        return name


class OllamaPullBody(OllamaNameBody, kw_only=True):
    stream: Annotated[bool | None, Meta(description="Lines of JSON as they come: the default.")] = None
    insecure: Annotated[bool | None, Meta(description="Accepted; nothing is fetched without TLS.")] = None
