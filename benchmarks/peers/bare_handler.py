"""The peer for embeddings, rerank and speech: the libraries behind a plain FastAPI handler, as many people write it.

    python -m benchmarks.peers.bare_handler --port 9000 --embed FOLDER --rerank FOLDER --speech FOLDER

Each request is one call of the library in FastAPI's thread pool, with the library's own defaults. There is no batching
across requests: that is what a server adds, and what the comparison shows.
"""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from fastapi import FastAPI, Request, UploadFile
from pydantic import BaseModel

DEVICE = os.environ.get("BARE_DEVICE", "cpu")
"""'cpu' or 'cuda'."""


class EmbedInput(BaseModel):
    input: str | list[str]


class RerankInput(BaseModel):
    query: str
    documents: list[str]


def add_embed(app: FastAPI, path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(path), device=DEVICE)
    model.encode(["warm"])

    @app.post("/v1/embeddings")
    def embeddings(body: EmbedInput) -> dict[str, Any]:
        texts = [body.input] if isinstance(body.input, str) else body.input
        vectors = model.encode(texts, normalize_embeddings=True)
        data = [{"object": "embedding", "index": i, "embedding": v.tolist()} for i, v in enumerate(vectors)]
        return {"object": "list", "data": data}


def add_rerank(app: FastAPI, path: Path) -> None:
    import torch
    from sentence_transformers import CrossEncoder

    # the file has 16-bit weights, which are slower on a CPU; anyone who measured once would write this
    arguments = {"dtype": "float32"} if DEVICE == "cpu" else {}
    model = CrossEncoder(str(path), device=DEVICE, model_kwargs=arguments)
    model.predict([("warm", "warm")])

    @app.post("/v1/rerank")
    def rerank(body: RerankInput) -> dict[str, Any]:
        pairs = [(body.query, document) for document in body.documents]
        scores = model.predict(pairs, activation_fn=torch.nn.Sigmoid())
        ranked = sorted(enumerate(scores.tolist()), key=lambda pair: -pair[1])
        return {"results": [{"index": i, "relevance_score": score} for i, score in ranked]}


def add_speech(app: FastAPI, path: Path, window: int) -> None:
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    if DEVICE != "cpu":
        from models.speech.libraries import load_cublas

        load_cublas()
    pipeline = BatchedInferencePipeline(WhisperModel(str(path), device=DEVICE))

    @app.post("/v1/audio/transcriptions")
    def transcriptions(file: UploadFile) -> dict[str, Any]:
        segments, _ = pipeline.transcribe(file.file, batch_size=8, chunk_length=window)
        return {"text": "".join(segment.text for segment in segments)}


def build(embed: Path | None, rerank: Path | None, speech: Path | None, speech_window: int = 30) -> FastAPI:
    """Return the application with the given models loaded. `speech_window` is the most seconds of audio per window."""
    app = FastAPI()

    @app.get("/health")
    def health(_: Request) -> dict[str, str]:
        return {"status": "ok"}

    for path, add in ((embed, add_embed), (rerank, add_rerank)):
        if path is not None:
            add(app, path)
    if speech is not None:
        add_speech(app, speech, speech_window)
    return app


def main(
    port: Annotated[int, typer.Option()],
    embed: Annotated[Path | None, typer.Option()] = None,
    rerank: Annotated[Path | None, typer.Option()] = None,
    speech: Annotated[Path | None, typer.Option()] = None,
    speech_window: Annotated[int, typer.Option()] = 30,
) -> None:
    """Serve until killed."""
    import uvicorn

    uvicorn.run(
        build(embed, rerank, speech, speech_window), host="127.0.0.1", port=port, log_level="warning", access_log=False
    )


if __name__ == "__main__":
    typer.run(main)
