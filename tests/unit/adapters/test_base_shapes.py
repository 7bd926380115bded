"""Shapes of bases, read from config.json, are those of transformers' own models.

Layers of models that also see are found under peft's names, which are transformers' current ones; most files have
older names.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapters.check_process import check
from adapters.content.base_shapes import UnknownBase, layer_of, read_base
from adapters.jobs import CheckAnswer, Job
from adapters.types import Base
from registry.bounds import Bounds
from registry.files.shape import LLAMA_LIKE
from tests.unit.adapters.makers import tensors, write_adapter, write_base

SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(LLAMA_LIKE))
def test_config_gives_the_shapes_of_the_real_model(kind: str, tmp_path: Path) -> None:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
    )  # here, because it would take 4 s of each worker that collects tests

    config = AutoConfig.for_model(kind, **SMALL)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    real = {
        name: tuple(module.weight.shape)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and layer_of(name + ".") is not None
    }
    found = read_base(tmp_path)
    assert found.linear == real
    assert found.layers == 2


def test_an_unknown_family_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "hidden_size": 8}))
    with pytest.raises(UnknownBase, match="mamba"):
        read_base(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "has no config.json and no safetensors files"),
        ("[1", "cannot be used: JSONDecodeError"),
        ("[1]", "cannot be used: AttributeError"),
        ('{"model_type": "llama", "hidden_size": 8}', "cannot be used: KeyError"),
    ],
)
def test_a_base_without_a_usable_config_says_why(tmp_path: Path, config: str | None, words: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UnknownBase, match=words):
        read_base(tmp_path)


def test_a_changed_base_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama"}))
    assert read_base(tmp_path).layers == 2
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama", "num_hidden_layers": 30}))
    assert read_base(tmp_path).layers == 30


NOW = "model.language_model.layers."
TOWERS = {"language_model.model.layers.": "vision_tower.vision_model.encoder.layers.0.mlp.fc1",
          "model.layers.": "visual.blocks.0.attn.qkv", NOW: "model.visual.blocks.0.attn.qkv"}  # fmt: skip
"""Prefix of the text layers in files of Gemma 3, Qwen2.5-VL and Qwen3-VL, and a layer of their vision half."""


def seeing(folder: Path, prefix: str) -> Base:
    file = write_base(folder) / "model.safetensors"
    weights = {name.replace("model.layers.", prefix): tensor for name, tensor in load_file(file).items()}
    save_file(weights | {f"{TOWERS[prefix]}.weight": torch.zeros(8, 8)}, file)
    return Base("seeing", folder, max_rank=16)


def write(folder: Path, prefix: str, **settings: object) -> None:
    weights = {name.replace("model.layers.", prefix): tensor for name, tensor in tensors().items()}
    write_adapter(folder, weights=weights, settings=settings)


def judge(folder: Path, base: Base, out: Path | None = None) -> CheckAnswer:
    if out is not None:
        out.mkdir()
    return check(Job(source=folder, base=base, bounds=Bounds(), out=out))


@pytest.mark.parametrize("prefix", TOWERS)
def test_pefts_names_are_kept_as_names_of_the_base(prefix: str, folder: Path, tmp_path: Path) -> None:
    base = seeing(tmp_path / "base", prefix)
    patterns = r"model\.language_model\.layers\.1\.self_attn\.q_proj"
    write(folder, NOW, target_modules=r".*language_model.*_proj", alpha_pattern={patterns: 64})
    answer = judge(folder, base, tmp_path / "out")
    assert (answer.outcome, answer.faults) == ("fit", ())
    stored = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {name.split("0.")[0].split("1.")[0] for name in stored} == {f"base_model.model.{prefix}"}
    made = tensors()
    for layer, scale in ((0, 2), (1, 8)):  # by the pattern in peft's spelling
        tensor = f"{layer}.self_attn.q_proj.lora_B.weight"
        assert torch.equal(
            stored[f"base_model.model.{prefix}{tensor}"], made[f"base_model.model.model.layers.{tensor}"] * scale
        )
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == "seeing"


def test_older_names_fit_newer_files(folder: Path, tmp_path: Path) -> None:
    write(folder, "language_model.model.layers.")
    base = seeing(tmp_path / "base", NOW)
    assert judge(folder, base).faults == ()


@pytest.mark.parametrize("prefix", TOWERS)
def test_the_normal_form_names_no_layer_that_sees(prefix: str, folder: Path, tmp_path: Path) -> None:
    """Both halves have layers 0 and 1 of the same names, so a short name meant a vision layer, too.

    The stored adapter was then called incomplete, and peft's combinations had layers that the engine lacks.
    """
    base = seeing(tmp_path / "base", prefix)
    weights = load_file(base.path / "model.safetensors")
    tower = TOWERS[prefix].partition("0.")[0]
    more = {f"{tower}{layer}.mlp.{name}.weight": torch.zeros(8, 8) for layer in (0, 1) for name in ("gate_proj", "qkv")}
    save_file(weights | more, base.path / "model.safetensors")
    write(folder, NOW, target_modules=r".*language_model.*_proj")
    first = judge(folder, base, tmp_path / "out")
    assert first.outcome == "fit"
    assert judge(tmp_path / "out", base).digest == first.digest


@pytest.mark.parametrize("prefix", TOWERS)
def test_adapters_of_vision_layers_are_refused(prefix: str, folder: Path, tmp_path: Path) -> None:
    """With the files' names they used to be accepted, and the engine refused each request."""
    base = seeing(tmp_path / "base", prefix)
    tower = TOWERS[prefix]
    pair = {f"base_model.model.{tower}.lora_{half}.weight": torch.ones(8, 8) for half in "AB"}
    weights = {name.replace("model.layers.", NOW): tensor for name, tensor in tensors().items()}
    write_adapter(folder, weights=weights | pair, settings={"target_modules": "all-linear"})
    (fault,) = judge(folder, base).faults
    assert fault.startswith(f"{tower}: LoRA outside the text part is not supported")


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", ""])
def test_names_that_a_wrapper_changed_are_reported_in_one_sentence(wrapper: str, folder: Path, base: Base) -> None:
    """Of DDP and torch.compile. '' is a network that was trained without its head."""
    front = f"{wrapper}model." if wrapper else ""
    weights = {name.replace("model.layers.", f"{front}layers."): tensor for name, tensor in tensors().items()}
    write_adapter(folder, weights=weights)
    named = [fault for fault in judge(folder, base).faults if "target_modules includes this layer" not in fault]
    assert len(named) == 1
    assert f"named model.layers.0, not {front}layers.0" in named[0]


def test_a_text_model_of_the_same_shapes_is_another_base(folder: Path, base: Base) -> None:
    write(folder, NOW)
    assert any("no such linear layer" in fault for fault in judge(folder, base).faults)


def test_layers_that_predict_tokens_ahead_are_not_layers_of_the_base(folder: Path, tmp_path: Path) -> None:
    """They are in the files of Qwen3.5 (mtp) and GLM-4.5 (one more layer), but not in adapters written by peft."""
    file = write_base(tmp_path / "base") / "model.safetensors"
    weights = load_file(file)
    last = {name.partition("layers.1.")[2]: tensor for name, tensor in weights.items() if "layers.1." in name}
    more = {
        f"{front}{name}": tensor.clone()
        for name, tensor in last.items()
        for front in ("mtp.layers.0.", "model.layers.2.")
    }
    save_file(weights | more, file)
    answer = judge(write_adapter(folder), Base("small", file.parent, max_rank=16), tmp_path / "out")
    assert (answer.outcome, answer.faults) == ("fit", ())
    write(folder, "model.layers.", target_modules="all-linear")
    assert judge(folder, Base("small", file.parent, max_rank=16)).faults == ()


@pytest.mark.parametrize("reported", [{"model_type": "llama4_text"}, {"text_config": {"model_type": "llama4_text"}}])
def test_adapters_of_layers_with_permuted_rows_are_refused(
    reported: dict[str, object], folder: Path, tmp_path: Path
) -> None:
    """vLLM permutes Llama 4's q and k for its positions. Logprobs with such an adapter differed from peft's by 3."""
    config = write_base(tmp_path / "base") / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **reported}))
    base = Base("small", config.parent, max_rank=16)
    faults = judge(write_adapter(folder), base).faults
    named = [fault.partition(": LoRA on ") for fault in faults]
    assert sorted(module for modules, _, _ in named for module in modules.split(", ")) == [
        f"model.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in ("k_proj", "q_proj")
    ]
    assert all("reorders its rows" in why for _, _, why in named)
    rest = {name: tensor for name, tensor in tensors().items() if "q_proj" not in name and "k_proj" not in name}
    write_adapter(
        folder, weights=rest, settings={"target_modules": ["v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
    )
    assert judge(folder, base).faults == ()


def test_adapters_of_a_network_with_other_names_in_its_files_fit(folder: Path, tmp_path: Path) -> None:
    """Nemotron-H's files say `backbone`, as peft once did."""
    file = write_base(tmp_path / "base") / "model.safetensors"
    save_file({name.replace("model.", "backbone."): tensor for name, tensor in load_file(file).items()}, file)
    base = Base("small", file.parent, max_rank=16)
    for number, prefix in enumerate(("model.layers.", "backbone.layers.")):
        write(folder, prefix)
        answer = judge(folder, base, tmp_path / f"out{number}")
        assert (answer.outcome, answer.faults) == ("fit", ())
        stored = load_file(tmp_path / f"out{number}" / "adapter_model.safetensors")
        assert all(name.startswith("base_model.model.backbone.layers.") for name in stored)
