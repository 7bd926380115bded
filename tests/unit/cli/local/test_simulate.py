"""`roundhouse fleet simulate`: the child's figures as a table and as JSON, and its refusals."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run

TINY = "nodes: 4\nseconds: 3\nmodels: 2\nadapters: 8\n"


def test_figures_are_printed_as_a_table_and_as_json(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(TINY)
    people = run("fleet", "simulate", str(file))
    assert people.exit_code == 0
    assert "4 nodes for 3 s" in people.stdout
    assert "times the p99 of one ideal queue" in people.stdout
    figures = json.loads(run("fleet", "simulate", str(file), "--json").stdout)
    assert (figures["nodes"], figures["over_admitted"]) == (4, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name either a file or --nodes"),
        (["fleet.yaml", "--nodes", "3"], "Name either a file or --nodes"),
        (["none.yaml"], "none.yaml cannot be read: No such file or directory."),
        (["."], "cannot be read: Is a directory."),
        (["wrong.yaml"], "is not a valid scenario"),
    ],
)
def test_an_impossible_simulation_is_wrong_usage(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    (tmp_path / "fleet.yaml").write_text(TINY)
    (tmp_path / "wrong.yaml").write_text("nodes: none\n")
    monkeypatch.chdir(tmp_path)
    result = run("fleet", "simulate", *words)
    assert result.exit_code == 2
    assert message in result.stderr
