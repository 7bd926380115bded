"""The tasks, one object each. `docs/extending.md` lists the steps to add one.

What recipes need to know about a task (its main path, its engines) is in `registry.recipes.definition.Task`; its
dialects are in `runtime/http/`.
"""

from typing import Any

from models.messages import EmbedRequest, RerankRequest, TranscribeRequest
from models.tasks.chat import CHAT, ChatPayload
from models.tasks.embed import EMBED
from models.tasks.kind import TaskKind
from models.tasks.rerank import RERANK
from models.tasks.transcribe import TRANSCRIBE
from registry.recipes.definition import Task

Call = ChatPayload | EmbedRequest | RerankRequest | TranscribeRequest
TASKS: dict[Task, TaskKind[Any]] = {kind.task: kind for kind in (CHAT, EMBED, RERANK, TRANSCRIBE)}


def task_of(call: Call) -> TaskKind[Any]:
    """Return the task of a call, by its type."""
    return next(kind for kind in TASKS.values() if isinstance(call, kind.call))
