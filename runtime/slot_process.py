"""With what a slot's process begins, in place of the command line (`server.workers_begin_with`).

LitServe imports its server, and FastAPI for it, which only the gateway uses: half of what a slot would import, and all
slots start together.
"""

from importlib import import_module
from typing import Any

from models.stand_ins import StandIns
from runtime import turns


def _http_exception() -> Any:
    """A base class of LitServe's."""
    return import_module("fastapi.exceptions").HTTPException


LATER = StandIns(
    ("fastapi", "litserve.server"), light=("fastapi.exceptions",), known={"fastapi.HTTPException": _http_exception}
)

turns.take()
with LATER.imports():
    import runtime.slots.worker  # noqa: F401  (its imports are what this is for)
