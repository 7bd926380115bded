"""A provider: models behind another server's HTTP API. Its key is not in the document."""

import re
from enum import StrEnum
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from registry.base.wording import quoted
from registry.byte_size import ByteSize
from registry.names import AdapterName, ModelId
from registry.recipes.definition import Prices, Task
from registry.recipes.fields import Seconds, Size, Strict, Text


class Protocol(StrEnum):
    """The vendor whose wire format a provider speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Surface(StrEnum):
    """A path of a provider's API, relative to its base URL."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "messages/count_tokens"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    TRANSCRIPTIONS = "audio/transcriptions"
    TRANSLATIONS = "audio/translations"


SPOKEN: dict[Protocol, tuple[Surface, ...]] = {
    Protocol.OPENAI: (
        Surface.CHAT,
        Surface.COMPLETIONS,
        Surface.RESPONSES,
        Surface.EMBEDDINGS,
        Surface.RERANK,
        Surface.TRANSCRIPTIONS,
        Surface.TRANSLATIONS,
    ),
    Protocol.ANTHROPIC: (Surface.MESSAGES, Surface.COUNT_TOKENS),
}
"""The paths of a provider whose document lists none."""
NEEDED: dict[Task, tuple[Surface, ...]] = {
    Task.CHAT: (Surface.CHAT, Surface.MESSAGES),
    Task.EMBED: (Surface.EMBEDDINGS,),
    Task.RERANK: (Surface.RERANK,),
    Task.TRANSCRIBE: (Surface.TRANSCRIPTIONS,),
}
"""The paths that can serve a task; a provider needs one of them."""
Time = Annotated[Seconds, Field(gt=0)]
_IN_HEADERS = re.compile(r"[ -~\xa1-\xff]+")
SERVED = 200
"""Characters of a model's name with its provider's, for which databases have room."""
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]{0,127}$")]


def _url(value: str) -> str:
    words = "write a URL such as https://api.example.com/v1, without user, query or fragment"
    try:
        parts = urlsplit(value)
        port = parts.port
        (parts.hostname or "").encode("idna").decode("idna")  # fails for labels that no name can have
    except ValueError:
        raise PydanticCustomError("base_url", words) from None
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in ("https", "http") or not parts.hostname or not plain or port == 0:
        raise PydanticCustomError("base_url", words)
    return value.rstrip("/")


class Timeouts(Strict):
    """Four bounds on one attempt."""

    connect: Time = Field(default=5.0, description="until the connection is open, including its TLS handshake")
    first_byte: Time = Field(
        default=120.0,
        description="from the request to the first text, or to the first byte if the answer is not streamed",
    )
    between_bytes: Time = Field(default=60.0, description="silence during an answer")
    whole: Time = Field(default=600.0, description="a whole request, over all its attempts")


class ProviderModel(Strict):
    """A model of a provider."""

    name: Text = Field(description="the provider's name for it")
    id: ModelId | None = Field(default=None, description="served as `provider/id`; default: `name`")
    aliases: tuple[ModelId, ...] = ()
    task: Task = Task.CHAT
    context_length: int | None = Field(default=None, ge=16)
    max_output: int = Field(
        default=4096, ge=1, description="tokens of an answer, if the protocol requires a bound and the client gave none"
    )
    abilities: tuple[Literal["tools", "thinking", "vision"], ...] = ()
    price: Prices = Prices()
    exact: bool = Field(
        default=False,
        description="treat an answer under another model's name as an error instead of adding a warning header",
    )
    segments: bool = Field(
        default=True, description="transcribe: whether it answers in `verbose_json`, with segments, as subtitles need"
    )
    texts: bool = Field(
        default=False,
        description="rerank: whether it takes `texts` instead of `documents`, like Text Embeddings Inference",
    )
    description: str = ""


class Provider(Strict):
    """A server with other models, and how to call it."""

    id: AdapterName
    version: int = Field(ge=1, description="the document's own version; raise it with every change")
    protocol: Protocol
    base_url: Annotated[Text, AfterValidator(_url)] = Field(description="up to and including `/v1`")
    key_env: Variable | None = Field(
        default=None, description="environment variable that holds the key; default: no key is sent"
    )
    key_file: Text | None = Field(
        default=None, description="file on the server's machine that holds the key, instead of a variable"
    )
    plain_http: bool = Field(
        default=False, description="allow http in `base_url`; requests can then be read in transit"
    )
    private_addresses: bool = Field(default=False, description="allow a host on this machine or in a private network")
    speaks: tuple[Surface, ...] = Field(
        default=(), description="paths that it supports; default: those of its protocol. Others are translated"
    )
    models: tuple[ProviderModel, ...] = Field(min_length=1)
    connections: int = Field(default=256, ge=1, le=10_000, description="requests at a time; more get a 429")
    batches: bool = Field(default=True, description="whether it may be sent batch lines; else they are refused")
    batch_connections: int = Field(
        default=4, ge=1, le=10_000, description="batch lines at a time, within `connections`"
    )
    timeouts: Timeouts = Timeouts()
    retries: int = Field(
        default=2,
        ge=0,
        le=5,
        description="further attempts at one model, before the first byte and within a tenth of all requests",
    )
    max_answer: Size = Field(
        default=ByteSize(64 * 2**20),
        description="most bytes of an answer; 2,048 embeddings of 3,072 numbers have 34 MB in base64",
    )
    bound: Literal["max_completion_tokens", "max_tokens"] = Field(
        default="max_completion_tokens",
        description="its field for the bound on an answer, for translated requests",
    )
    stream_usage: bool = Field(default=True, description="whether `stream_options.include_usage` may be sent")
    description: str = ""

    @field_validator("speaks", mode="after")
    @classmethod
    def _once(cls, value: tuple[Surface, ...]) -> tuple[Surface, ...]:
        return tuple(dict.fromkeys(value))

    @model_validator(mode="after")
    def _holds(self) -> Self:
        if self.base_url.startswith("http:") and not self.plain_http:
            raise PydanticCustomError(
                "provider_http", "requests over http can be read in transit; write https, or `plain_http: true`"
            )
        if self.key_env and self.key_file:
            raise PydanticCustomError("provider_key", "write `key_env` or `key_file`, not both")
        names: set[str] = set()
        for model in self.models:
            if (name := self.served(model)) in names:
                raise PydanticCustomError(
                    "provider_models", "'{name}' is listed twice; give one of them another id", {"name": name}
                )
            names.add(name)
            if len(name) > SERVED:
                raise PydanticCustomError(
                    "provider_models",
                    "{name} has more than {most} characters; give it an `id` of at most 128",
                    {"name": quoted(name), "most": SERVED},
                )
            if not _IN_HEADERS.fullmatch(name):
                raise PydanticCustomError(
                    "provider_models",
                    "'{name}' cannot be written in a response header; give it an `id` of ASCII letters",
                    {"name": name},
                )
            if not set(NEEDED[model.task]) & set(self.spoken):
                raise PydanticCustomError(
                    "provider_task",
                    "task {task} needs one of these in `speaks`: {paths}",
                    {"task": model.task.value, "paths": ", ".join(NEEDED[model.task])},
                )
        return self

    @property
    def spoken(self) -> tuple[Surface, ...]:
        return self.speaks or SPOKEN[self.protocol]

    def served(self, model: ProviderModel) -> str:
        """Return the name by which clients call the model."""
        return f"{self.id}/{model.id or model.name}"
