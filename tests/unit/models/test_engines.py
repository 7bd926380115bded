"""The table of engines: each row names what is there, and recipes know the same engines."""

import importlib.util
import re
from pathlib import Path
from typing import get_args

import pytest

from models.engines import ENGINES, create, engine_version, prewarmed_bytes
from registry.recipes.definition import EngineSpec, Task


def test_recipes_know_the_same_engines() -> None:
    assert set(get_args(EngineSpec.model_fields["name"].annotation)) == set(ENGINES)


def test_every_task_has_an_engine() -> None:
    assert {task for row in ENGINES.values() for task in row.factories} == set(Task)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_names_modules_that_are_there(engine: str) -> None:
    row = ENGINES[engine]
    for name in (*row.factories.values(), row.prewarm):
        spec = importlib.util.find_spec(name.partition(":")[0])
        assert spec is not None
        assert spec.origin is not None
        text = Path(spec.origin).read_text()
        assert re.search(rf"^(class|def) {name.partition(':')[2]}\b", text, re.M)


def test_what_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no engine vllm for task embed"):
        create("vllm", Task.EMBED)
    assert (engine_version("no-such-engine"), prewarmed_bytes(None)) == ("", 0)
