"""The normal form of good adapters, which peft itself has written."""

import json
import shutil
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from adapters.check_process import check
from adapters.jobs import CheckAnswer, Job
from adapters.store import Store
from adapters.types import Base
from registry.bounds import Bounds
from tests.unit.adapters.makers import SHAPES, tensors, write_adapter

ALL = [module.split(".")[1] for module in SHAPES]


@cache
def loaded(path: Path) -> Any:
    """Return a copy of the base's network, because peft changes networks in place."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def normalised(folder: Path, base: Base, out: Path) -> CheckAnswer:
    """Check `folder` and write its normal form into `out`."""
    out.mkdir(parents=True)
    answer = check(Job(source=folder, base=base, bounds=Bounds(), out=out))
    assert answer.outcome == "fit", answer
    return answer


def write_with_peft(base: Base, folder: Path, dtype: torch.dtype, **settings: Any) -> PeftModel:
    """Write an adapter with random halves for all targets of `settings`; return the model that wrote it."""
    torch.manual_seed(3)
    settings = {"target_modules": ALL, "r": 8, "task_type": "CAUSAL_LM", **settings}
    model = get_peft_model(deepcopy(loaded(base.path)), LoraConfig(**settings))
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_" in key:
                value.copy_((torch.randn_like(value) * 0.05).to(torch.bfloat16))
    model.to(dtype).save_pretrained(folder)
    return model


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"lora_alpha": 16},
    "odd scale": {"lora_alpha": 20},
    "rank-stabilised": {"lora_alpha": 16, "use_rslora": True},
    "rank pattern": {"lora_alpha": 16, "rank_pattern": {"q_proj": 4, r".*layers\.1\.mlp\.up_proj": 16}},
    "alpha pattern": {"lora_alpha": 16, "alpha_pattern": {"layers.0.self_attn.v_proj": 4, "down_proj": 24}},
    "patterns and rank-stabilised": {
        "lora_alpha": 8, "use_rslora": True, "rank_pattern": {"k_proj": 2}, "alpha_pattern": {"k_proj": 5},
    },
    "attention only": {"lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "all-linear": {"lora_alpha": 16, "target_modules": "all-linear"},
    "regular expression": {"lora_alpha": 16, "target_modules": r".*\.layers\.\d+\.self_attn\.(q|o)_proj"},
    "one layer": {"lora_alpha": 16, "layers_to_transform": [1]},
    "one layer, and one of another by its full name": {
        "lora_alpha": 16, "target_modules": ["q_proj", "model.layers.0.mlp.up_proj"], "layers_to_transform": [1],
    },
    "without one module": {"lora_alpha": 16, "exclude_modules": ["k_proj"]},
    "one odd module": {"lora_alpha": 16, "target_modules": ["layers.0.mlp.up_proj", "o_proj"]},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_peft_and_the_normal_form_change_the_base_alike(
    kind: str, dtype: torch.dtype, base: Base, folder: Path, tmp_path: Path
) -> None:
    model = write_with_peft(base, folder, dtype, **KINDS[kind])
    answer = normalised(folder, base, tmp_path / "out")
    weights = load_file(tmp_path / "out" / "adapter_model.safetensors")
    seen = 0
    for key, module in model.named_modules():
        if not hasattr(module, "get_delta_weight"):
            continue
        exact = module.to(torch.float32).get_delta_weight("default")
        a, b = (weights.pop(f"{key}.lora_{half}.weight").float() for half in "AB")
        # Each element of B is rounded once, by at most 2^-8 of it, which adds up to at most 2^-8 of |B||A|.
        assert ((b @ a) - exact).abs().le(2.0**-8 * (b.abs() @ a.abs()) * 1.01).all()
        seen += 1
    assert seen
    assert not weights
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings["r"] == settings["lora_alpha"] == answer.rank
    assert answer.bytes == (tmp_path / "out" / "adapter_model.safetensors").stat().st_size


@pytest.mark.parametrize("kind", KINDS)
def test_peft_loads_the_normal_form_and_gets_the_same_weights(
    kind: str, base: Base, folder: Path, tmp_path: Path
) -> None:
    first = write_with_peft(base, folder, torch.float32, **KINDS[kind])
    normalised(folder, base, tmp_path / "out")
    again = PeftModel.from_pretrained(deepcopy(loaded(base.path)), tmp_path / "out")
    inputs = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        expected, got = first.float()(inputs).logits, again(inputs).logits
        plain = loaded(base.path)(inputs).logits
    assert (got - expected).abs().max() < 0.01 * (expected - plain).abs().max()


def test_a_scale_that_is_a_power_of_two_is_exact(base: Base, folder: Path, tmp_path: Path) -> None:
    weights = tensors()
    write_adapter(folder, weights=dict(weights), settings={"lora_alpha": 16})
    answer = normalised(folder, base, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "adapter_model.safetensors")
    for key, value in weights.items():
        assert torch.equal(stored[key], value * 2 if "lora_B" in key else value)
    assert answer.notes == ()


def test_the_normal_form_of_a_normal_form_is_the_same(base: Base, folder: Path, tmp_path: Path) -> None:
    write_with_peft(base, folder, torch.float32, **KINDS["rank pattern"])
    first = normalised(folder, base, tmp_path / "one")
    assert normalised(tmp_path / "one", base, tmp_path / "two").digest == first.digest


def test_equal_content_has_one_digest(base: Base, folder: Path, tmp_path: Path) -> None:
    """With any dtype, order, spelling, metadata and informational settings."""
    plain = tensors()
    digests = set()
    variants: list[tuple[dict[str, torch.Tensor], dict[str, Any]]] = [
        (plain, {}),
        (tensors(dtype=torch.float32), {"base_model_name_or_path": "other", "peft_version": "9"}),
        (dict(reversed(plain.items())), {"target_modules": "all-linear"}),
        ({k.replace(".weight", ".default.weight"): v for k, v in plain.items()}, {"lora_dropout": 0.5}),
        ({k.removeprefix("base_model.model."): v for k, v in plain.items()}, {"some_note": "hello"}),
        (plain, {"lora_alpha": 16 * 8**0.5 / 8, "use_rslora": True}),
        ({k: v / 2 if "lora_B" in k else v for k, v in plain.items()}, {"lora_alpha": 32}),
    ]
    for number, (weights, settings) in enumerate(variants):
        write_adapter(folder / str(number), weights=dict(weights), settings=settings)
        digests.add(normalised(folder / str(number), base, tmp_path / f"out{number}").digest)
    write_adapter(folder / "meta")
    save_file(plain, folder / "meta" / "adapter_model.safetensors", metadata={"made": "today"})
    digests.add(normalised(folder / "meta", base, tmp_path / "outmeta").digest)
    assert len(digests) == 1


def test_the_digest_never_changes(base: Base, folder: Path, tmp_path: Path) -> None:
    """All machines and later versions find stored adapters by it."""
    write_adapter(folder, weights={k: torch.ones_like(v) / 64 for k, v in tensors().items()})
    digest = normalised(folder, base, tmp_path / "out").digest
    assert digest == "sha256:8886a2dd1b31e23738150c0e8cbd40e7c49ade2fe42d2ad7abd4748f5e0efb3c"


def test_other_content_or_another_base_has_another_digest(base: Base, folder: Path, tmp_path: Path) -> None:
    write_adapter(folder / "a")
    write_adapter(folder / "b", seed=1)
    write_adapter(folder / "c", settings={"lora_alpha": 17})
    twin = Base("twin", base.path, base.max_rank)
    digests = {normalised(folder / n, base, tmp_path / n).digest for n in "abc"}
    digests.add(normalised(folder / "a", twin, tmp_path / "twin").digest)
    assert len(digests) == 4


def test_the_store_recomputes_the_digest(base: Base, folder: Path, tmp_path: Path) -> None:
    write_adapter(folder)
    store = Store(tmp_path / "store")
    store.start()
    with store.writing() as out:
        answer = check(Job(source=folder, base=base, bounds=Bounds(), out=out))
        path = store.commit(out, answer.digest)
    assert store.verify(answer.digest) == path


def test_a_dry_run_finds_the_same_digest(base: Base, folder: Path, tmp_path: Path) -> None:
    write_adapter(folder)
    dry = check(Job(source=folder, base=base, bounds=Bounds()))
    assert dry == normalised(folder, base, tmp_path / "out")


def test_notes_say_what_was_changed(base: Base, folder: Path) -> None:
    weights = tensors(dtype=torch.float32)
    write_adapter(folder, weights=weights, settings={"lora_alpha": 20, "fan_in_fan_out": True, "my_note": "x"})
    notes = " ".join(check(Job(source=folder, base=base, bounds=Bounds())).notes)
    for words in ("F32", "not a power of two", "fan_in_fan_out", "my_note"):
        assert words in notes


def test_an_untrained_adapter_is_refused_because_it_has_no_effect(base: Base, folder: Path) -> None:
    write_adapter(folder, weights={k: v * ("lora_A" in k) for k, v in tensors().items()})
    answer = check(Job(source=folder, base=base, bounds=Bounds()))
    assert answer.outcome == "fit"
    assert "answers like the base" in answer.notes[0]


def test_a_base_without_tensor_files_is_judged_by_its_config(base: Base, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    shutil.copy(base.path / "config.json", tmp_path / "bare")
    write_adapter(folder)
    bare = Base(base.id, tmp_path / "bare", base.max_rank)
    answers = [check(Job(source=folder, base=b, bounds=Bounds())) for b in (base, bare)]
    assert answers[0] == answers[1]
