"""Work of a request in one unit for all tasks: the prefill of one prompt token.

The other figures are relative to that. Their accuracy determines how evenly teams share a model's time.

| a generated token | a cached token | a second of audio               | a pair, a text |
|-------------------|----------------|---------------------------------|----------------|
| 4                 | 0.1            | 50: frames of Whisper's encoder | by its tokens  |
"""

from models.messages import Usage

ANSWER_TOKEN, CACHED_TOKEN, AUDIO_SECOND = 4.0, 0.1, 50.0


def work_of(usage: Usage) -> float:
    """Return the work of a finished request."""
    return max(1.0, read_work(usage) + usage.completion_tokens * ANSWER_TOKEN)


def read_work(usage: Usage) -> float:
    """Return the work of a request's prompt and audio."""
    read = usage.prompt_tokens - usage.cached_tokens * (1 - CACHED_TOKEN)
    return read + usage.audio_seconds * AUDIO_SECOND
