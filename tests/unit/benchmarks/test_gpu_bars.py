"""The aims of a run on a GPU are met, missed or not measured, by its results."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import bars
from benchmarks.gpu.large import AIMS

CARD = {"gpu": "NVIDIA H200", "time": "2026-11-29T12:00:00Z", "commit": 5 * "0123abcd", "command": "acceptance"}


def steps() -> dict[str, dict[str, Any]]:
    """Return steps as a run writes them, with all aims just met."""
    found: dict[str, dict[str, Any]] = {
        "ttft: without stamps, roundhouse": {"ok": True, "p50_ms": 17.0},
        "ttft: without stamps, vllm serve": {"ok": True, "p50_ms": 17.5},
        "mixed: roundhouse": {"ok": True, "ratio": 0.76}, "mixed: vllm serve": {"ok": True, "ratio": 0.48},
        "shipped: swaps and long prompts": {"ok": True, "longest_ms": 69.0},
        "sleep: 1": {"ok": True, "state": "asleep", "seconds": 3.5}, "sleep: 2": {"ok": True, "seconds": 9.0},
        "speech": {"ok": True, "figures": {f"{what}.ratio": {"value": 1.1} for what in ("alone", "four", "long")}},
        **{name: {"ok": True, "right": 200, "wrong": []} for names in bars.RIGHT.values() for name in names},
        **{name: {"ok": True} for name in bars.OTHERS},
    }  # fmt: skip
    for tier, (median, highest) in AIMS.items():
        figures = {"added_p50_ms": median, "p99_over_p99_ms": highest - 0.1, "base_p50_ms": 18.0}
        found |= {f"tiers: {tier}, {server}": {"ok": True, **figures} for server in (bars.OURS, bars.STOCK)}
    for kind, most in bars.GAPS.items():
        found[f"storm: {kind}, roundhouse"] = {"ok": True, "longest_ms": most}
        found[f"storm: {kind}, vllm serve"] = {"ok": True, "longest_ms": 228.0}
    for kind in ("embed", "rerank"):
        for clients, rate in ((16, 1.6), (64, 1.9)):
            over = {"padded": 1.0, "unpadded": rate, "graphs": 3.0 - rate}
            found[f"{kind} on mixed lengths, {clients} clients"] = {"ok": True, "over_library": over}
    return found


def verdicts(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {bar.name: bar.verdict for bar in bars.bars(found)}


def test_each_row_of_the_aims_has_a_verdict() -> None:
    found = bars.bars(steps())
    assert {bar.verdict for bar in found} == {"met"}
    assert [(bar.seen, bar.stock) for bar in found if bar.name.startswith("twenty")] == [(0.76, 0.48)]
    assert [bar.seen for bar in found if bar.name.startswith(("embed, ", "rerank, "))] == [1.6, 1.6]
    assert {bar.verdict for bar in bars.bars({})} == {"not measured"}


@pytest.mark.parametrize(
    ("name", "change", "row"),
    [
        ("ttft: without stamps, roundhouse", {"p50_ms": 18.0}, "first token of the base, one client, over stock's"),
        ("tiers: host, roundhouse", {"added_p50_ms": 4.5}, "adapter in host memory: added p50"),
        ("storm: swaps, roundhouse", {"longest_ms": 31.0}, "longest gap of eight streams: swaps"),
        ("shipped: swaps and long prompts", {"longest_ms": 71.0},
         "the same in the shipped recipe: swaps and long prompts"),
        ("mixed: roundhouse", {"ratio": 0.74}, "twenty adapters in a batch of 64, tokens/s over the base's"),
        ("sleep: 1", {"seconds": 16.0}, "first sleep of the 8B shape, about 28 GB"),
        ("rerank on mixed lengths, 64 clients", {"over_library": {"unpadded": 1.4, "graphs": 1.1, "padded": 1.0}},
         "rerank, mixed lengths, over the library's"),
        ("speech", {"figures": {f"{what}.ratio": {"value": 0.9} for what in ("alone", "four", "long")}},
         "speech over faster-whisper's batches, the worst of three"),
        ("twenty adapters in one crowd", {"right": 199, "wrong": [["rot13", "a", "b"]]},
         "right answers without compilation"),
        ("recordings are understood", {"ok": False}, "embeddings, scores and transcripts are a CPU's"),
    ],
)  # fmt: skip
def test_a_figure_over_its_aim_misses_only_that_row(name: str, change: dict[str, Any], row: str) -> None:
    found = steps()
    found[name] |= change
    assert [name for name, verdict in verdicts(found).items() if verdict != "met"] == [row]
    assert verdicts(found)[row] == "MISSED"


def test_an_aim_that_was_not_measured_is_not_met() -> None:
    found = steps()
    found["sleep: 1"]["state"] = "absent"
    del found["speech"]["figures"]["long.ratio"]
    del found["scores are those of a CPU"]
    del found["twenty adapters in one crowd, on four places, 2"]
    del found["ttft: without stamps, vllm serve"]
    missing = [name for name, verdict in verdicts(found).items() if verdict == "not measured"]
    assert len(missing) == 4
    first = bars.bars(found)[0]
    assert (first.seen, first.verdict) == (1.0, "met"), "the base's requests among the adapters' count instead"


def write(file: Path, found: dict[str, dict[str, Any]], **environment: str) -> str:
    file.write_text(json.dumps({"environment": CARD | environment, "steps": found}))
    return str(file)


def test_one_command_prints_which_aims_were_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = steps()
    right = {name: whole.pop(name) for name in [*bars.OTHERS, *(name for some in bars.RIGHT.values() for name in some)]}
    timed, answers = write(tmp_path / "timed.json", whole), write(tmp_path / "right.json", right)
    monkeypatch.setattr(sys, "argv", ["bars", timed, answers])
    assert bars.main() == 0
    text = capsys.readouterr().out
    assert f"{len(bars.bars({}))} met, 0 missed, 0 not measured" in text
    assert "note:" not in text
    monkeypatch.setattr(sys, "argv", ["bars", timed])
    assert bars.main() == 1
    assert "4 not measured" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["gpu", "commit"])
def test_files_of_two_runs_are_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [write(tmp_path / "a.json", steps()), write(tmp_path / "b.json", steps(), **{key: "another"})]
    monkeypatch.setattr(sys, "argv", ["bars", *files])
    assert bars.main() == 2
    assert f"differ in {key}: " in capsys.readouterr().err
    (tmp_path / "b.json").write_text("[]")
    assert bars.main() == 2


def test_meaningless_figures_are_marked() -> None:
    assert bars.warning(CARD) == ""
    assert "without a GPU" in bars.warning({"command": "acceptance --shape tiny"})
    assert "tiny" in bars.warning(CARD | {"command": "acceptance --shape tiny --stock"})
