"""vLLM's source is parsed by one thread at a time."""

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry import vllm_source

OVERLAP_SECONDS = 0.3
"""How long a parse waits for another one to begin. Only a failing test depends on it."""


def test_two_threads_do_not_parse_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 may raise SystemError otherwise, which failed one of two models that were added at once."""
    files = [tmp_path / f"{number}.py" for number in range(2)]
    for number, file in enumerate(files):
        file.write_text(f"number = {number}")
    running, overlapped = threading.Semaphore(1), threading.Event()

    def slowly(text: str) -> ast.Module:
        is_alone = running.acquire(blocking=False)
        if not is_alone:
            overlapped.set()
        overlapped.wait(OVERLAP_SECONDS)
        if is_alone:
            running.release()
        return ast.parse(text)

    monkeypatch.setattr(vllm_source, "ast", SimpleNamespace(parse=slowly, Module=ast.Module))
    with ThreadPoolExecutor(2) as pool:
        trees = list(pool.map(vllm_source.parsed, files))
    assert [ast.unparse(tree) for tree in trees] == ["number = 0", "number = 1"]
    assert not overlapped.is_set()
