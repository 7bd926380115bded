"""Embeddings, rerank and audio in the OpenAPI document. Request schemas come from the structs that check the bodies."""

import msgspec

from runtime.http.audio.fields import FORMATS, GRANULARITIES
from runtime.http.embeddings.bodies import EmbedBody, EmbeddingsBody
from runtime.http.errors import Dialect
from runtime.http.openapi_parts import (
    ANY_OBJECT,
    COUNT,
    LOADING,
    NUMBER,
    STRING,
    Json,
    Operation,
    answer,
    array,
    either,
    json_body,
    one_of,
    record,
    ref,
)
from runtime.http.rerank.bodies import CohereBody, JinaBody, ScoreBody, TeiBody
from runtime.http.rerank.score import SIDES

_BODIES = (EmbeddingsBody, EmbedBody, JinaBody, CohereBody, TeiBody, ScoreBody)
_SCORE: Json = {"type": "number", "minimum": 0, "maximum": 1}
_TOKENS = record({"prompt_tokens": COUNT, "total_tokens": COUNT})
_FLAG = one_of("true", "false", "1", "0")
_DURATION = record({"type": {"const": "duration"}, "seconds": COUNT})
_WORD = record({"word": STRING, "start": NUMBER, "end": NUMBER})
_SEGMENT = record(
    {
        "id": COUNT, "seek": COUNT, "start": NUMBER, "end": NUMBER, "text": STRING, "tokens": array(COUNT),
        "temperature": NUMBER, "avg_logprob": NUMBER, "compression_ratio": NUMBER, "no_speech_prob": NUMBER,
    }
)  # fmt: skip

_FORM: dict[str, Json] = {
    "model": {**STRING, "description": "Before `file`, an unknown name is answered without waiting for the upload."},
    "file": {
        "type": "string",
        "contentMediaType": "application/octet-stream",
        "description": "A recording: wav, mp3, flac, ogg, m4a or webm.",
    },
    "language": {**STRING, "description": "ISO 639-1 code or English name; left out: detected."},
    "prompt": {**STRING, "description": "Text that came before, or words in the wanted spelling."},
    "response_format": {**one_of(*FORMATS), "default": "json"},
    "temperature": {"type": "number", "minimum": 0, "maximum": 1, "default": 0},
    "timestamp_granularities[]": array(one_of(*GRANULARITIES), description="Only with verbose_json."),
    "stream": {**_FLAG, "description": "Events transcript.text.delta and transcript.text.done; with json or text."},
    "hotwords": {**STRING, "description": "Words to expect."},
    "keywords[]": array(STRING, description="Words to expect, one per entry."),
    "vad_filter": {**_FLAG, "description": "Leave out what is not speech; default as the recipe says."},
    "chunking_strategy": one_of("auto", "server_vad", '{"type": "server_vad"}'),
    "user": STRING,
}


def _structs() -> dict[str, Json]:
    _, found = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    found["ScoreBody"]["anyOf"] = [{"required": list(sides)} for sides in SIDES]
    return found


SCHEMAS: dict[str, Json] = {
    **_structs(),
    "Embeddings": record(
        {
            "object": {"const": "list"},
            "data": array(
                record(
                    {
                        "object": {"const": "embedding"},
                        "index": COUNT,
                        "embedding": either(array(NUMBER), {**STRING, "contentEncoding": "base64"}),
                    }
                )
            ),
            "model": STRING,
            "usage": _TOKENS,
        }
    ),
    "Vectors": array(array(NUMBER)),
    "JinaRanking": record(
        {
            "id": STRING,
            "object": {"const": "list"},
            "model": STRING,
            "usage": _TOKENS,
            "results": array(
                record(
                    {
                        "index": COUNT,
                        "relevance_score": _SCORE,
                        "document": ANY_OBJECT,
                        "raw_score": NUMBER,
                        "chunks": {"type": "integer", "minimum": 2},
                    },
                    ["index", "relevance_score"],
                )
            ),
        }
    ),
    "CohereRanking": record(
        {
            "id": STRING,
            "results": array(
                record(
                    {"index": COUNT, "relevance_score": _SCORE, "document": ANY_OBJECT}, ["index", "relevance_score"]
                )
            ),
            "meta": record(
                {
                    "api_version": record({"version": STRING}),
                    "billed_units": record({"search_units": COUNT}),
                    "tokens": record({"input_tokens": COUNT, "output_tokens": COUNT}),
                    "warnings": array(STRING),
                },
                ["api_version", "billed_units", "tokens"],
            ),
        }
    ),
    "TeiRanking": array(record({"index": COUNT, "score": NUMBER, "text": STRING}, ["index", "score"])),
    "Scores": record(
        {
            "id": STRING,
            "object": {"const": "list"},
            "created": COUNT,
            "model": STRING,
            "data": array(record({"index": COUNT, "object": {"const": "score"}, "score": NUMBER})),
            "usage": ref("Usage"),
        }
    ),
    "AudioForm": record(_FORM, ["model", "file"], open_=False),
    "Transcript": either(
        record({"text": STRING, "usage": _DURATION}, open_=False),
        record(
            {
                "task": one_of("transcribe", "translate"),
                "language": STRING,
                "duration": NUMBER,
                "text": STRING,
                "segments": array(_SEGMENT),
                "words": array(_WORD),
                "usage": _DURATION,
            },
            ["task", "language", "duration", "text", "usage"],
        ),
    ),
}

_TEXTS = ("text/plain", "application/x-subrip", "text/vtt", "text/event-stream")
_AUDIO_ANSWERS: Json = {**answer("Transcript"), **dict.fromkeys(_TEXTS, STRING)}
_DOCUMENTS = ["A slot is a worker process.", "Bread is baked in an oven."]
_CHUNKS = (
    "Documents over the context length are scored in chunks, and the best chunk counts; the header X-Roundhouse-Chunks "
    "then tells how many chunks were scored."
)
_ERRORS_422 = (400, 404, 408, 413, 422, 429, 500, 503)


def _score(id_: str) -> Operation:
    return Operation(
        id_, "Rerank", "Scores of pairs (vLLM)", answer("Scores"), body=json_body("ScoreBody"),
        description="One text and any number, or pair by pair. `model` may be left out where there is one reranker.",
        parameters=("Prefer",), others=LOADING,
        examples={"pairs": {"model": "starter-rerank", "text_1": "what is a slot?", "text_2": _DOCUMENTS}},
    )  # fmt: skip


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("post", "/v1/embeddings"): Operation(
        "createEmbeddings", "Embeddings", "Embeddings (OpenAI)", answer("Embeddings"),
        body=json_body("EmbeddingsBody"), parameters=("Prefer",), others=LOADING,
        examples={
            "texts": {"model": "starter-embed", "input": ["a warm kitchen", "a cold cellar"]},
            "base64": {"model": "starter-embed", "input": "a warm kitchen", "encoding_format": "base64"},
        },
    ),
    ("post", "/embed"): Operation(
        "embed", "Embeddings", "Embeddings (Text Embeddings Inference)", answer("Vectors"),
        body=json_body("EmbedBody"), parameters=("Prefer", "Model"), others=LOADING, dialects=(Dialect.TEI,),
        description="`model` may be left out where there is one embedding model.",
        examples={"texts": {"inputs": ["a warm kitchen", "a cold cellar"]}},
    ),
    ("post", "/v1/rerank"): Operation(
        "rerank", "Rerank", "Rerank (Jina)", answer("JinaRanking"), body=json_body("JinaBody"),
        description=f"Cohere v1's and vLLM's fields are taken too. {_CHUNKS}",
        parameters=("Prefer",), others=LOADING, dialects=(Dialect.JINA,),
        examples={"documents": {"model": "starter-rerank", "query": "what is a slot?", "documents": _DOCUMENTS}},
    ),
    ("post", "/v2/rerank"): Operation(
        "rerankCohere", "Rerank", "Rerank (Cohere v2)", answer("CohereRanking"), body=json_body("CohereBody"),
        description=_CHUNKS,
        parameters=("Prefer",), others=LOADING, dialects=(Dialect.COHERE,), errors=_ERRORS_422,
        examples={"best": {"model": "starter-rerank", "query": "what is a slot?", "documents": _DOCUMENTS, "top_n": 1}},
    ),
    ("post", "/rerank"): Operation(
        "rerankTei", "Rerank", "Rerank (Text Embeddings Inference, or Jina)",
        {"application/json": either(ref("TeiRanking"), ref("JinaRanking"))},
        body={"application/json": either(ref("TeiBody"), ref("JinaBody"))},
        description="With `texts` it answers as TEI does, with `documents` as Jina does.",
        parameters=("Prefer", "Model"), others=LOADING, dialects=(Dialect.TEI, Dialect.JINA),
        examples={"texts": {"query": "what is a slot?", "texts": _DOCUMENTS}},
    ),
    ("post", "/score"): _score("score"),
    ("post", "/v1/score"): _score("scoreV1"),
    ("post", "/v1/audio/transcriptions"): Operation(
        "createTranscription", "Audio", "Transcription (OpenAI)", _AUDIO_ANSWERS,
        body={"multipart/form-data": ref("AudioForm")}, parameters=("Prefer", "Progress"), others=LOADING,
    ),
    ("post", "/v1/audio/translations"): Operation(
        "createTranslation", "Audio", "Translation into English (OpenAI)", _AUDIO_ANSWERS,
        body={"multipart/form-data": ref("AudioForm")}, parameters=("Prefer", "Progress"), others=LOADING,
    ),
}  # fmt: skip
