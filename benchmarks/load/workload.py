"""Seeded requests. All prompts of a run differ, so no answer comes from a prefix cache."""

import random

from benchmarks.load.client import request_bytes

WORDS = (
    "engine", "table", "river", "yellow", "seven", "garden", "train", "letter", "winter", "copper", "signal", "paper",
    "window", "bridge", "market", "silver", "island", "number", "forest", "morning", "pocket", "harbour", "station",
    "candle", "valley", "button", "circle", "planet", "summer", "kitchen",
)  # fmt: skip


class Workload:
    """Endless different requests from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0

    def text(self, words: int) -> str:
        """Return `words` words. The first one is a number that is never repeated."""
        self._count += 1
        return " ".join([f"{self._count:06d}", *self._random.choices(WORDS, k=max(0, words - 1))])

    def embed(self, model: str, words: int) -> bytes:
        return request_bytes("/v1/embeddings", {"model": model, "input": self.text(words)})

    def rerank(self, model: str, words: int, documents: int) -> bytes:
        """Return a rerank request with documents of `words` words each."""
        body = {"model": model, "query": self.text(6), "documents": [self.text(words) for _ in range(documents)]}
        return request_bytes("/v1/rerank", body)

    def chat(self, model: str, *, tokens: int = 64, text: str | None = None) -> bytes:
        """Return a streamed chat request for exactly `tokens` tokens, with usage at the end."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": self.text(6) if text is None else text}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return request_bytes("/v1/chat/completions", body)
