"""Imports of the engines for texts, before it is known which model comes."""

from collections.abc import Callable

from models.text import embeddings, rerank  # noqa: F401  (their own modules are what is imported)
from models.text.cpu import library
from models.text.loading import import_library


def prewarm(hurried: Callable[[], bool]) -> None:
    """What both engines of this package need. Nothing of it can wait, so `hurried` is not asked."""
    import_library()
    import torch

    if torch.version.cuda is None:
        library.load()
