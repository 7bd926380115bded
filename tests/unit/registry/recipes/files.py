"""Recipe files for tests, and the faults that loading them reports."""

from collections.abc import Callable
from pathlib import Path

import pytest

from registry.errors import Unfit
from registry.recipes.loading import load_documents

GOOD = "id: {}\nversion: 1\ntask: chat\nsource: {{path: weights}}\nengine: {{name: vllm}}\n"

Write = Callable[..., Path]


def faults(path: Path | list[Path], **options: bool) -> list[str]:
    """Return the faults, without the file's folder."""
    with pytest.raises(Unfit) as caught:
        load_documents(path, **options)
    assert caught.value.code == "bad_recipe"
    folder = path[0].parent if isinstance(path, list) else path.parent
    return [fault.replace(f"{folder}/", "") for fault in caught.value.faults]
