"""Bodies of the rerank dialects. Fields that change results are honoured or refused, never ignored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from registry.errors import BadRequest
from runtime.http.errors import Dialect

_Filled = Annotated[str, Meta(extra_json_schema={"minLength": 1})]


class TextObject(msgspec.Struct):
    """A text in an object. Other fields are ignored."""

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
CHANGING = frozenset((
    "chat_template_kwargs", "instruct", "instruction", "min_score", "score_threshold", "task", "threshold", "top_k",
    "truncation_side",
))  # fmt: skip
"""Fields of other servers that change a ranking and are not in each body here."""
DEFAULTS: Mapping[str, Sequence[object]] = {"chat_template_kwargs": ({},), "truncation_side": ("right",)}
"""Values with which those fields have no effect."""
INSTEAD = {dialect: {"top_k": "send 'top_n'"} for dialect in (Dialect.JINA, Dialect.COHERE)}
"""Advice on fields that have another name here."""


class JinaBody(msgspec.Struct, kw_only=True):
    """Jina's rerank request, which also fits Cohere v1's and vLLM's."""

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
    return_len: Annotated[bool | None, Meta(description="Xinference's: add the counts of tokens as `meta.tokens`.")] = (
        None
    )
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
        dict[str, Any] | None, Meta(description="Only with mode `disabled`: spans are not available.")
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
    """vLLM's score request, with one pair of its fields: one to one, one to many, or pairwise."""

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


class NimText(msgspec.Struct):
    text: _Filled
    image: None = None


class NimBody(msgspec.Struct, kw_only=True):
    """The ranking request of NVIDIA NIM."""

    query: NimText
    passages: Annotated[list[NimText], _Some]
    model: Annotated[str | None, Meta(description="Needed where there are several rerankers.")] = None
    truncate: Annotated[
        Literal["NONE", "END"] | None,
        Meta(description="END: score only the start of passages that are over the context length."),
    ] = None


def document_text(value: str | dict[str, Any], where: str, fields: Sequence[str] | None) -> str:
    """The text of a document: a string, an object's `text`, or the fields named by `rank_fields`.

    A single field gives its value. Several give a line `name: value` each, in the order of `fields`. Raises BadRequest
    if an object lacks them, and for images and other content that is not text.
    """
    if isinstance(value, str):
        return value
    names = list(fields or ("text",))
    missing = [name for name in names if value.get(name) is None]
    if missing:
        raise BadRequest(
            f"'{where}' has no field '{missing[0]}'. Send a string, an object with 'text', or name the fields to "
            "score in 'rank_fields'.",
            param=where,
        )
    for name in names:
        if not isinstance(value[name], str | int | float):
            raise BadRequest(f"'{where}.{name}' must be text.", param=f"{where}.{name}")
    if len(names) == 1:
        return str(value[names[0]])
    return "\n".join(f"{name}: {value[name]}" for name in names)


def plain(value: str | TextObject) -> str:
    return value if isinstance(value, str) else value.text


def query_text(value: str | TextObject, where: str = "query") -> str:
    """The text of a query. Raises BadRequest if it is empty."""
    text = plain(value)
    if not text:
        raise BadRequest(f"'{where}' is empty.", param=where)
    return text


def document_texts(
    values: Sequence[str | dict[str, Any]], where: str = "documents", fields: Sequence[str] | None = None
) -> list[str]:
    """Raises BadRequest for none."""
    if not values:
        raise BadRequest(f"'{where}' is an empty list. Send at least one.", param=where)
    return [document_text(value, f"{where}[{i}]", fields) for i, value in enumerate(values)]


def tightest(*limits: int | None) -> int:
    """The smallest of several limits for the same thing. 0 and None mean no limit, also in the result."""
    return min((limit for limit in limits if limit), default=0)


def context_only(value: int | None) -> bool:
    """Whether vLLM's truncate_prompt_tokens cuts at the context length. Raises BadRequest for other lengths."""
    if value not in (None, -1):
        raise BadRequest(
            "'truncate_prompt_tokens' may only be -1, the model's context length. To score less of each document, send "
            "'max_tokens_per_doc'.",
            param="truncate_prompt_tokens",
            code="unsupported_value",
        )
    return value == -1


# --- pairs of /score, grouped by query: each query is one call of the engine ------------------------------------------
SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


@dataclass(frozen=True, slots=True)
class ScorePairs:
    """Pairs of query and document, in the order of the answer."""

    all: Sequence[tuple[str, str]]
    sides: tuple[str, str]
    """The fields from which queries and documents came."""

    def by_query(self) -> list[tuple[str, list[int]]]:
        """Each query with the indices of its pairs."""
        groups: dict[str, list[int]] = {}
        for position, (query, _) in enumerate(self.all):
            groups.setdefault(query, []).append(position)
        return list(groups.items())

    def in_order(self, scores: Sequence[Sequence[float]]) -> list[float]:
        """Reorder scores from the order of `by_query` to that of the answer."""
        ordered = [0.0] * len(self.all)
        for (_, positions), row in zip(self.by_query(), scores, strict=True):
            for position, score in zip(positions, row, strict=True):
                ordered[position] = score
        return ordered


def pairs(body: ScoreBody) -> ScorePairs:
    """Build the pairs in the order of the answer. Raises BadRequest unless the sides are 1:1, 1:N or N:N."""
    for one, two in SIDES:
        left, right = getattr(body, one), getattr(body, two)
        if left is not None and right is not None:
            break
    else:
        raise BadRequest("Send 'text_1' and 'text_2', or 'queries' and 'documents'.", param="text_1")
    first, second = _texts(left, one), _texts(right, two)
    if len(first) != len(second) and len(first) != 1:
        raise BadRequest(
            f"'{one}' has {len(first)} texts and '{two}' has {len(second)}. Send one and any number, or as many of "
            "both.",
            param=two,
        )
    for index, query in enumerate(first):
        query_text(query, f"{one}[{index}]")
    return ScorePairs(list(zip(first * len(second) if len(first) == 1 else first, second, strict=True)), (one, two))


def _texts(side: str | TextObject | list[str | TextObject], name: str) -> list[str]:
    if not isinstance(side, list):
        return [plain(side)]
    if not side:
        raise BadRequest(f"'{name}' is an empty list. Send at least one text.", param=name)
    return [plain(value) for value in side]
