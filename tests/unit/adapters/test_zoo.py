"""Every kind of bad adapter is refused with a message that names its fault."""

from pathlib import Path

import pytest

from adapters.check_process import check
from adapters.jobs import CheckAnswer, Job
from adapters.types import Base
from registry.bounds import Bounds
from tests.unit.adapters.makers import name, write_adapter
from tests.unit.adapters.zoo import ZOO, Bad


def judge(folder: Path, base: Base, bounds: Bounds | None = None) -> CheckAnswer:
    return check(Job(source=folder, base=base, bounds=bounds or Bounds()))


@pytest.mark.parametrize("bad", ZOO, ids=lambda bad: bad.name)
def test_bad_adapters_are_refused_with_their_reason(bad: Bad, folder: Path, base: Base) -> None:
    bad.make(folder)
    answer = judge(folder, base)
    assert answer.outcome == "unfit"
    assert any(all(word in fault for word in bad.words) for fault in answer.faults), answer.faults


def test_the_zoo_is_large_and_its_names_differ() -> None:
    assert len({bad.name for bad in ZOO}) == len(ZOO) >= 30


def test_all_faults_are_reported_at_once(folder: Path, base: Base) -> None:
    def spoil(weights: dict[str, "object"]) -> None:
        del weights[name(0, "self_attn.q_proj", "B")]
        weights[name(1, "mlp.up_proj", "A")][0, 0] = float("nan")  # type: ignore[index]

    write_adapter(folder, change=spoil, settings={"use_dora": True, "bias": "all"})  # type: ignore[arg-type]
    reported = " ".join(judge(folder, base).faults)
    for words in ("use_dora", "bias is 'all'", "lora_B is missing", "NaN or infinite"):
        assert words in reported


def test_one_fault_in_all_layers_is_reported_once(folder: Path, base: Base) -> None:
    write_adapter(folder, rank=16, settings={"r": 8})
    (fault,) = judge(folder, base).faults
    assert "and 10 more" in fault


def test_layers_of_target_parameters_are_not_called_ignored(folder: Path, base: Base) -> None:
    """peft lists them apart from `target_modules`, and uses them."""
    write_adapter(folder, settings={"target_modules": ["q_proj"], "target_parameters": ["mlp.up_proj.weight"]})
    (fault,) = judge(folder, base).faults
    assert "LoRA on bare parameters" in fault


def test_many_faults_are_cut_to_a_readable_number(folder: Path, base: Base) -> None:
    write_adapter(folder, settings={f"use_{number}": True for number in range(200)})
    faults = judge(folder, base).faults
    assert len(faults) == 40
    assert "161 more" in faults[-1]


def test_many_notes_are_cut_too(folder: Path, base: Base) -> None:
    write_adapter(folder, settings={f"k{number}": True for number in range(60_000)})
    answer = judge(folder, base)
    assert (answer.outcome, len(answer.notes)) == ("fit", 40), answer.detail
    assert "59961 more notes" in answer.notes[-1]


def test_a_files_content_cannot_garble_a_message(folder: Path, base: Base) -> None:
    write_adapter(folder, settings={"peft_type": "\x1b[31m" + "x" * 10_000})
    (fault,) = judge(folder, base).faults
    assert "\x1b" not in fault
    assert len(fault) < 300


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(adapter_bytes=1000), "over the limit of 1000"),
        (Bounds(adapter_config_bytes=10), "over the limit of 10"),
        (Bounds(adapter_header_bytes=100), "over the limit of 100"),
        (Bounds(adapter_tensors=5), "over the limit of 5"),
    ],
)
def test_an_adapter_over_a_bound_is_refused_with_the_bound(
    bounds: Bounds, words: str, folder: Path, base: Base
) -> None:
    write_adapter(folder)
    answer = judge(folder, base, bounds)
    assert any(words in fault for fault in answer.faults), answer.faults


def test_a_base_of_unknown_shape_is_reported(folder: Path, tmp_path: Path) -> None:
    write_adapter(folder)
    (tmp_path / "empty").mkdir()
    answer = judge(folder, Base("odd", tmp_path / "empty", 16))
    assert any("no config.json" in fault for fault in answer.faults)
