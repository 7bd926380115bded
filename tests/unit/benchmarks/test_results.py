"""Results files, and the Markdown tables made from them."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import environment, results

SECTION: dict[str, Any] = {
    "environment": {
        "time": "2026-01-01T00:00:00Z", "command": "python -m benchmarks", "cpu": "A CPU", "cores": 2, "python": "3.11",
        "versions": {"torch": "2"}, "commit": "0123456789abcdef", "uncommitted_changes": False,
    },
    "load_before": {"load_average": [1.5, 1, 1]},
    "load_after": {"load_average": [2.5, 1, 1]},
    "requests": {"c1": 12},
    "failures": {"c1: timeout": 2},
    "seconds": 61.2,
    "notes": ["a note"],
    "servers": ["roundhouse", "vllm serve"],
    "bars": [{"name": "an aim", "seen": 0.4213, "relation": "<=", "aim": 1.0, "unit": "ms", "met": True}],
    "figures": {
        "c1.added": {"value": 0.4213, "low": 0.3, "high": 0.5, "unit": "ms", "rounds": 3},
        "c1.vllm serve.ttft": {"value": 11.0, "low": 10.0, "high": 12.0, "unit": "ms", "rounds": 3},
        "c1.roundhouse.ttft": {"value": 10.0, "low": 10.0, "high": 10.0, "unit": "ms", "rounds": 1},
    },
}  # fmt: skip
HELD = {"benchmarks": {"gateway_tax": SECTION}}


def test_tables_belong_to_their_results_files() -> None:
    for name, held in results.load_all().items():
        assert (results.FOLDER / f"{name}.md").read_text() == results.page(held)


def test_other_models_and_fewer_rounds_do_not_overwrite_figures() -> None:
    assert len({results.path(quick, model) for quick in (False, True) for model in ("starter", "tiny", "real")}) == 6


def test_a_runs_own_results_do_not_count_as_uncommitted_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    code, written = tmp_path / "code.py", tmp_path / "benchmarks" / "results" / "today.json"
    written.parent.mkdir(parents=True)
    for file in (code, written):
        file.write_text("before")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    written.write_text("after")
    assert not environment.record()["uncommitted_changes"]
    code.write_text("after")
    assert environment.record()["uncommitted_changes"]


def test_a_run_names_its_commit_where_git_is_missing_or_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), (*who, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    commit = environment.record()["commit"]
    assert len(commit) == 40
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert environment.record()["commit"] == commit, "the checkout is another user's"
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    packed, own = tmp_path / "packed", os.environ["PATH"]
    monkeypatch.setenv("PATH", str(packed))
    assert environment.record()["commit"] == commit
    monkeypatch.setenv("PATH", own)
    for words in (("pack-refs", "--all"), ("checkout", "-q", "--detach")):
        assert environment.commit_in_files(tmp_path / ".git") == commit
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert environment.commit_in_files(tmp_path / ".git") == commit
    assert environment.commit_in_files(packed) == ""


def test_a_table_has_failures_load_and_spread() -> None:
    text = results.page(HELD)
    assert "Load average 1.5 before and 2.5 after. 12 requests, 2 failures" in text
    assert "- c1: timeout: 2 ×" in text
    assert "| an aim | 0.421 ms | <= 1 | yes |" in text
    assert "| c1.ttft | ms | 10 | 11 (10 to 12) |" in text.replace(" |  |", " |")


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (1234.5, "1234"), (99.94, "99.9"), (0.012345, "0.0123"), (-3.14159, "-3.14")]
)
def test_numbers_have_three_significant_digits(value: float, expected: str) -> None:
    assert results.number(value) == expected
