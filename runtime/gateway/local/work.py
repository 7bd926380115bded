"""Estimate a request's work for the queue of its model (the unit: `models.work`)."""

from cachetools import LRUCache

from models.messages import Usage
from models.tasks import TASKS
from models.work import ANSWER_TOKEN, AUDIO_SECOND
from registry.recipes.definition import Task

LEARNING_RATE = 0.1
"""The part of a new figure in a running mean."""
MOST_ADAPTERS = 1024


class WorkEstimator:
    """Running means of one model: work of a byte, and tokens of an answer."""

    def __init__(self, task: Task) -> None:
        rates = TASKS[task].work
        self._per_byte, self._most = rates.byte, rates.most_per_byte
        """Work of a byte. A text has no more tokens than bytes; a reranker reads its query beside each document."""
        self._answers = LRUCache[str, float](MOST_ADAPTERS)
        self._answer = rates.answer_tokens

    def prompt(self, size: int) -> float:
        """The work of reading so many bytes: for texts their tokens."""
        return size * self._per_byte

    def work(self, size: int, adapter: str, most_tokens: int | None) -> float:
        answer = self._answers.get(adapter, self._answer)
        return max(
            1.0, self.prompt(size) + ANSWER_TOKEN * (answer if most_tokens is None else min(answer, most_tokens))
        )

    def learn(self, size: int, adapter: str, usage: Usage) -> None:
        read = usage.prompt_tokens + usage.audio_seconds * AUDIO_SECOND
        if not read:
            return  # it ended before the engine had counted
        if size and read <= size * self._most:  # it leaves pictures out, whose tokens are no text's
            self._per_byte += LEARNING_RATE * (read / size - self._per_byte)
        mean = self._answers.get(adapter, self._answer)
        self._answers[adapter] = mean + LEARNING_RATE * (usage.completion_tokens - mean)
