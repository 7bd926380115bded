"""Estimates a request's work for the queue of its model (in the unit of `models.work`)."""

from cachetools import LRUCache

from models.messages import Usage
from models.tasks import TASKS
from models.work import ANSWER_TOKEN, AUDIO_SECOND
from registry.recipes.definition import Task

LEARNING_RATE = 0.1
"""Weight of a new value in a running mean."""
MOST_ADAPTERS = 1024


class WorkEstimator:
    """Running means for one model: work per byte and tokens per answer."""

    def __init__(self, task: Task) -> None:
        rates = TASKS[task].work
        self._per_byte, self._most = rates.byte, rates.most_per_byte
        """Work per byte. A text has at most one token per byte; a reranker reads its query with each document."""
        self._answers = LRUCache[str, float](MOST_ADAPTERS)
        self._answer = rates.answer_tokens

    def prompt(self, size: int) -> float:
        """Estimate the work of reading this many bytes; for text, its tokens."""
        return size * self._per_byte

    def work(self, size: int, adapter: str, most_tokens: int | None) -> float:
        answer = self._answers.get(adapter, self._answer)
        return max(
            1.0, self.prompt(size) + ANSWER_TOKEN * (answer if most_tokens is None else min(answer, most_tokens))
        )

    def learn(self, size: int, adapter: str, usage: Usage) -> None:
        read = usage.prompt_tokens + usage.audio_seconds * AUDIO_SECOND
        if not read:
            return  # ended before the engine counted
        if size and read <= size * self._most:  # skips requests with images, whose tokens do not come from text
            self._per_byte += LEARNING_RATE * (read / size - self._per_byte)
        mean = self._answers.get(adapter, self._answer)
        self._answers[adapter] = mean + LEARNING_RATE * (usage.completion_tokens - mean)
