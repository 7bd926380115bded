"""Work of a request in one unit for all tasks: that of reading a prompt token.

The other figures say how much longer an engine is busy with something else; how well they fit bounds how evenly teams
share a model's time.

| a token of an answer | a cached token | a second of audio                           | a pair, a text  |
|----------------------|----------------|---------------------------------------------|-----------------|
| 4                    | 0.1            | 50: what Whisper's encoder makes of it       | by its tokens   |
"""

from models.messages import Usage

ANSWER_TOKEN, CACHED_TOKEN, AUDIO_SECOND = 4.0, 0.1, 50.0


def work_of(usage: Usage) -> float:
    """The work that a finished request was."""
    return max(1.0, read_work(usage) + usage.completion_tokens * ANSWER_TOKEN)


def read_work(usage: Usage) -> float:
    """The part of it that its prompt and its audio were."""
    read = usage.prompt_tokens - usage.cached_tokens * (1 - CACHED_TOKEN)
    return read + usage.audio_seconds * AUDIO_SECOND
