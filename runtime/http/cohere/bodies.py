"""Cohere's v2 requests for chat and embeddings, and v1's for embeddings."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from models.messages import EmbedRequest
from registry.errors import BadRequest
from runtime.http.embeddings.bodies import PROMPTS, Dimensions, input_list

Text = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
Penalty = Annotated[float, Meta(ge=0, le=1)]
InputType = Literal["search_document", "search_query", "classification", "clustering"]
EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
INPUT_TYPES = {
    "search_query": PROMPTS["search_query"],
    "search_document": PROMPTS["search_document"],
    "classification": ["classification", "Classification", "query", "search_query"],
    "clustering": ["clustering", "Clustering", "query", "search_query"],
}
"""Names under which models have the prompt for an `input_type`; EmbeddingGemma's are those of MTEB's tasks. For other
tasks, queries and documents are alike."""


class CohereImageUrl(msgspec.Struct, kw_only=True):
    url: str
    detail: str | None = None


class CohereDocument(msgspec.Struct, kw_only=True):
    data: dict[str, Any] | str
    id: str | None = None


class CohereContent(msgspec.Struct, kw_only=True):
    """A part of a message: text, an image, thinking, or a document returned by a tool."""

    type: Literal["text", "image_url", "thinking", "document"]
    text: str | None = None
    image_url: CohereImageUrl | None = None
    thinking: str | None = None
    document: CohereDocument | None = None


class CohereFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | None = None


class CohereToolCall(msgspec.Struct, kw_only=True):
    id: str
    function: CohereFunction
    type: Literal["function"] | None = None


class CohereMessage(msgspec.Struct, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[CohereContent] | None = None
    tool_calls: list[CohereToolCall] | None = None
    tool_plan: str | None = None
    tool_call_id: str | None = None


class CohereToolFunction(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class CohereTool(msgspec.Struct, kw_only=True):
    function: CohereToolFunction
    type: Literal["function"] | None = None


class CohereResponseFormat(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None
    """The name of this field in version 1."""


class CohereThinking(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled"]
    token_budget: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class CohereChatBody(msgspec.Struct, kw_only=True):
    """Cohere's /v2/chat. Unknown fields are ignored, and a header names them."""

    model: Annotated[str, Meta(description="A chat model, an alias or an adapter.", examples=["starter-chat"])]
    messages: Annotated[list[CohereMessage], Meta(min_length=1)]
    stream: bool | None = None
    tools: list[CohereTool] | None = None
    strict_tools: bool | None = None
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    response_format: CohereResponseFormat | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    k: Annotated[int, Meta(ge=0, le=2**31 - 1, description="0: no limit.")] | None = None
    p: Annotated[float, Meta(gt=0, le=1)] | None = None
    thinking: CohereThinking | None = None
    logprobs: Annotated[bool | None, Meta(description="Only false: the ids of tokens are not reported.")] = None
    documents: Annotated[list[Any] | None, Meta(description="Only empty: answers cite no documents.")] = None
    citation_options: Annotated[dict[str, Any] | None, Meta(description="Has no effect: answers cite nothing.")] = None
    safety_mode: Annotated[str | None, Meta(description="Has no effect: models here have no such modes.")] = None
    priority: Annotated[int | None, Meta(description="Accepted; requests are served in fair turns.")] = None

    def refuse(self) -> None:
        """Raise BadRequest for unsupported fields that would change the answer."""
        if self.documents:
            raise BadRequest(
                "Answers here cite no documents: put them into a message, and leave 'documents' out.",
                param="documents",
                code="unsupported_value",
            )
        if self.logprobs:
            raise BadRequest(
                "Logprobs with token ids are not available: leave 'logprobs' out, or send /v1/chat/completions.",
                param="logprobs",
                code="unsupported_value",
            )


class CohereEmbedContent(msgspec.Struct, kw_only=True):
    type: Literal["text"]
    text: str


class CohereEmbedInput(msgspec.Struct, kw_only=True):
    content: Annotated[list[CohereEmbedContent], Meta(min_length=1, max_length=1)]


class CohereEmbedV1Body(msgspec.Struct, kw_only=True):
    """Cohere's /v1/embed, which LangChain's classes and earlier clients of Cohere send."""

    model: Annotated[str, Meta(description="An embedding model or an alias.", examples=["starter-embed"])]
    input_type: Annotated[
        InputType | None, Meta(description="Which of the model's prompts goes before each text; none by default.")
    ] = None
    texts: Annotated[list[Text], Meta(extra_json_schema={"minItems": 1})] | None = None
    inputs: list[CohereEmbedInput] | None = None
    images: Annotated[list[str] | None, Meta(description="Only empty: models here embed text.")] = None
    embedding_types: Annotated[
        list[EmbeddingType] | None,
        Meta(
            description="float (the default), base64 (of float32), int8 and uint8 (each vector scaled to its largest "
            "value, so that cosines stay), binary and ubinary (a bit for each dimension)."
        ),
    ] = None
    output_dimension: Dimensions | None = None
    truncate: Annotated[
        Literal["NONE", "START", "END"] | None,
        Meta(description="END (the default) cuts texts that are too long, NONE refuses them; START is not available."),
    ] = None
    max_tokens: Annotated[None, Meta(description="Only null: texts are cut at the model's context.")] = None
    priority: Annotated[int | None, Meta(description="Accepted; requests are served in fair turns.")] = None

    @property
    def all_texts(self) -> list[str]:
        return [*(self.texts or ()), *(one.content[0].text for one in self.inputs or ())]

    def request(self) -> EmbedRequest:
        """The engine's request. Raises BadRequest for inputs that cannot be embedded."""
        if self.images:
            raise BadRequest(
                "Models here embed text: leave 'images' out, and send 'texts'.",
                param="images",
                code="unsupported_value",
            )
        if self.truncate == "START":
            raise BadRequest(
                "Texts can be cut at their end only: send 'truncate': \"END\".",
                param="truncate",
                code="unsupported_value",
            )
        names = INPUT_TYPES[self.input_type] if self.input_type else []
        return EmbedRequest(
            inputs=input_list([*self.all_texts], "inputs" if self.inputs else "texts"),
            prompt_name=names[0] if names else None,
            prompt_fallbacks=names[1:],
            dimensions=self.output_dimension,
            truncate=self.truncate != "NONE",
        )


class CohereEmbedBody(CohereEmbedV1Body, kw_only=True):
    """Cohere's /v2/embed, with `texts`, or `inputs` of one text each."""

    input_type: Annotated[InputType, Meta(description="Which of the model's prompts goes before each text.")]
