"""Bodies of the rerank dialects. Fields that change results are honoured or refused, never dropped."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_Filled = Annotated[str, Meta(extra_json_schema={"minLength": 1})]


class TextObject(msgspec.Struct):
    """A text as an object; other fields of it are not read."""

    text: _Filled


Text = Annotated[
    _Filled | TextObject,
    Meta(description="A string, or an object with `text`.", examples=["what is a slot?", {"text": "what is a slot?"}]),
]
Document = Annotated[
    str | dict[str, Any],
    Meta(description="A string, or an object with `text` or with the fields that `rank_fields` names."),
]
_Some = Meta(extra_json_schema={"minItems": 1}, description="Up to 2,048 where the server is not set otherwise.")
Documents = Annotated[list[Document], _Some]
Texts = Annotated[list[str], _Some]
Side = _Filled | TextObject | Annotated[list[Text], _Some]
Model = Annotated[str, Meta(description="Id or alias of a reranker.", examples=["starter-rerank"])]
TopN = Annotated[int, Meta(ge=0, le=2**31 - 1, description="Return only the best ones; 0 or absent: all.")]
Limit = Annotated[int, Meta(ge=0, le=2**31 - 1, description="Cut each text to its first so many tokens. 0: no limit.")]
Chunks = Annotated[
    int,
    Meta(
        ge=1,
        le=2**31 - 1,
        description="Score at most so many chunks of a long document, from its start; what lies behind is left out.",
    ),
]
ReturnDocuments = Annotated[bool, Meta(description="Repeat each document in its result.")]
RankFields = Annotated[
    list[str],
    Meta(min_length=1, description="Which fields of document objects are scored; several as `name: value` lines."),
]
Truncate = Annotated[
    bool, Meta(description="Score only the start of documents that are over the context length, not all their chunks.")
]
CONTEXT = Annotated[
    int, Meta(description="vLLM's field; only -1 (the model's context length, as `truncate`) can be honoured.")
]
CHANGING = frozenset(("instruction", "min_score", "score_threshold", "task", "threshold", "top_k"))
"""Fields of other servers' that change a ranking, and that no body here has."""


class JinaBody(msgspec.Struct, kw_only=True):
    """Jina's rerank request; Cohere v1's and vLLM's fit too."""

    model: Model
    query: Text
    documents: Documents
    top_n: TopN | None = None
    return_documents: ReturnDocuments | None = None
    rank_fields: RankFields | None = None
    raw_scores: Annotated[bool | None, Meta(description="Ours: add `raw_score`, the logit, to each result.")] = None
    truncate: Truncate | None = None
    truncation: Truncate | None = None
    truncate_prompt_tokens: CONTEXT | None = None
    max_chunks_per_doc: Chunks | None = None
    max_tokens_per_doc: Limit | None = None
    max_tokens_per_query: Limit | None = None
    max_doc_length: Limit | None = None
    max_query_length: Limit | None = None
    return_embeddings: Literal[False] | None = None
    return_len: Literal[False] | None = None
    kwargs: Literal["{}"] | None = None
    use_activation: Literal[True] | None = None
    user: str | None = None
    priority: int | None = None
    request_id: str | None = None


class CohereBody(msgspec.Struct, kw_only=True):
    """Cohere's v2 rerank request."""

    model: Model
    query: _Filled
    documents: Documents
    top_n: Annotated[int, Meta(ge=1)] | None = None
    max_tokens_per_doc: Limit | None = None
    priority: Annotated[int | None, Meta(description="Accepted; requests are served in fair turns.")] = None
    relevant_spans: Annotated[
        dict[str, Any] | None, Meta(description="Only with mode `disabled`: spans cannot be had.")
    ] = None
    return_documents: ReturnDocuments | None = None
    rank_fields: RankFields | None = None
    max_chunks_per_doc: Chunks | None = None


class TeiBody(msgspec.Struct, kw_only=True):
    """The rerank request of Text Embeddings Inference."""

    query: _Filled
    texts: Texts
    model: Annotated[str | None, Meta(description="Ours: needed where there are several rerankers.")] = None
    raw_scores: Annotated[bool | None, Meta(description="Logits instead of values between 0 and 1.")] = None
    return_text: Annotated[bool | None, Meta(description="Repeat each text in its result.")] = None
    truncate: Truncate | None = None
    truncation_direction: Literal["Right", "Left", "right", "left"] | None = None


class ScoreBody(msgspec.Struct, kw_only=True):
    """vLLM's score request: one pair of its fields. One to one, one to many, or pair by pair."""

    model: Annotated[str | None, Meta(description="Needed where there are several rerankers.")] = None
    text_1: Side | None = None
    text_2: Side | None = None
    data_1: Side | None = None
    data_2: Side | None = None
    queries: Side | None = None
    documents: Side | None = None
    items: Side | None = None
    use_activation: Annotated[bool | None, Meta(description="false: logits instead of values between 0 and 1.")] = None
    truncate_prompt_tokens: CONTEXT | None = None
    max_tokens_per_query: Limit | None = None
    max_tokens_per_doc: Limit | None = None
    instruction: None = None
    chat_template_kwargs: None = None
    mm_processor_kwargs: None = None
