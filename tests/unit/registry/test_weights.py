"""Reading folders of weights without loading them: bytes from headers, configs, and refusals."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import load_file as load_torch

from registry.errors import Unfit
from registry.files.shape import Shape, read_shape
from registry.files.weights import read_weights
from tests.unit.adapters.makers import write_base


def test_the_shape_is_read_from_the_config(tmp_path: Path) -> None:
    def write(config: object) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    base = {"num_attention_heads": 8, "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 10}
    assert read_shape(write(base)) == Shape(2, 64, 256, 8, 8, 8, 10, 4096)
    assert read_shape(
        write({"text_config": {**base, "head_dim": 16, "num_key_value_heads": 2}})
    ).kv_values_per_token == (2 * 2 * 2 * 16)
    assert read_shape(write({**base, "kv_lora_rank": 512, "qk_rope_head_dim": 64})).latent == 576
    no_config = "is not a model's config"
    for bad, stated in (({**base, "hidden_size": "big"}, no_config), ({"vocab_size": 1}, "does not give"),
                        ([1], no_config)):  # fmt: skip
        with pytest.raises(Unfit, match=stated):
            read_shape(write(bad))
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(Unfit, match=no_config):
        read_shape(tmp_path)
    with pytest.raises(Unfit, match="cannot be read"):
        read_shape(tmp_path / "none")


def test_folders_that_cannot_be_loaded_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="holds no weights"):
        read_weights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(Unfit, match="only as pickle"):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a header")
    with pytest.raises(Unfit, match="cannot be read as safetensors"):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(Unfit, match=r"lacks gone\.safetensors"):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    with pytest.raises(Unfit, match="lacks x"):
        read_weights(tmp_path)
    outside = json.dumps({"weight_map": {"a": str(tmp_path / "model.safetensors")}})
    for index in ("[]", outside, '{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map":' + "[" * 100_000):
        (tmp_path / "model.safetensors.index.json").write_text(index)
        with pytest.raises(Unfit, match="is not an index"):
            read_weights(tmp_path)


def test_scales_that_are_powers_of_two_count_a_byte_each(tmp_path: Path) -> None:
    """Block scales of FP8 models (`ue8m0`), which vLLM loads as they are."""
    header = json.dumps({"a.weight_scale_inv": {"dtype": "F8_E8M0", "shape": [4, 2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    (tmp_path / "config.json").write_text("{}")
    assert [str(one.dtype) for one in load_torch(tmp_path / "model.safetensors").values()] == ["torch.float8_e8m0fnu"]
    weights = read_weights(tmp_path)
    assert (weights.bytes, weights.loaded_bytes(2)) == (8, 8)


def test_a_chat_model_without_its_head_is_refused(tmp_path: Path) -> None:
    """vLLM would use uninitialised memory."""
    embedding = {"model.embed_tokens.weight": np.zeros((2, 2), np.float32)}
    llama = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}

    def write(config: object, tensors: dict[str, Any]) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    with pytest.raises(Unfit, match=r"no lm_head\.weight.*tie_word_embeddings is false"):
        read_weights(write(llama, embedding))
    whole = {**embedding, "lm_head.weight": np.zeros((2, 2), np.float32)}
    assert read_weights(write(llama, whole)).parameters == 8
    for other in ({"tie_word_embeddings": True}, {"architectures": ["LlamaModel"]}, {"architectures": []}):
        assert read_weights(write({**llama, **other}, embedding)).parameters == 4
    assert read_weights(write({"architectures": llama["architectures"]}, embedding)).parameters == 4
    assert read_weights(write([], embedding)).parameters == 4


def layers(*, without: str = "", config: dict[str, Any] | None = None, folder: Path) -> Path:
    """Write a model of two layers with gates and three experts, without the named weight."""
    heads = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
    heads += ["self_attn.o_proj", "mlp.down_proj"]
    heads += ["feed_forward.w1", "feed_forward.w2", "feed_forward.w3", "linear_attn.in_proj_a", "linear_attn.in_proj_b"]
    experts = [f"mlp.experts.{number}.{part}" for number in range(3) for part in ("w1", "w2", "w3")]
    names = [f"model.layers.{layer}.{part}.weight" for layer in range(2) for part in heads + experts]
    names += [f"model.layers.{layer}.self_attn.{part}_proj.bias" for layer in range(2) for part in "qkv"]
    (folder / "config.json").write_text(json.dumps(config or {}))
    save_file(
        {name: np.zeros(2, np.float32) for name in names if name not in (without, f"{without}.weight")},
        folder / "model.safetensors",
    )
    return folder


@pytest.mark.parametrize(
    "lost",
    ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj",
     "mlp.experts.1.w2", "mlp.experts.0.w1", "feed_forward.w3", "linear_attn.in_proj_a", "self_attn.k_proj.bias",
     "self_attn.o_proj", "mlp.down_proj"],
)  # fmt: skip
def test_a_model_without_one_of_several_packed_weights_is_refused(lost: str, tmp_path: Path) -> None:
    """vLLM packs them into one layer, and checks only whether that got any weight."""
    with pytest.raises(Unfit, match=rf"has no model\.layers\.1\.{re.escape(lost)}, "):
        read_weights(layers(without=f"model.layers.1.{lost}", folder=tmp_path))


@pytest.mark.parametrize(
    ("weight", "others", "missing"),
    [
        ("weight", (), "weight_scale"), ("weight", ("input_scale",), "weight_scale"),
        ("qweight", ("qzeros",), "scales"), ("weight_packed", ("weight_shape",), "weight_scale"),
        ("weight", ("weight_scale",), ""),
        ("weight", ("weight_scale_inv",), ""), ("weight", ("SCB",), ""), ("weight", ("weight_quantizer.scale",), ""),
        ("qweight", ("scales",), ""), ("weight_packed", ("weight_scale",), ""),
    ],
)  # fmt: skip
def test_quantized_weights_without_their_scale_are_refused(
    weight: str, others: tuple[str, ...], missing: str, tmp_path: Path
) -> None:
    """vLLM computed with whatever was in memory."""
    names = [f"model.layers.0.mlp.proj.{name}" for name in (weight, *others)]
    save_file({name: np.zeros((2, 2), np.int8) for name in names}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "any"}}))
    if missing:
        with pytest.raises(Unfit, match=rf"has no model\.layers\.0\.mlp\.proj\.{missing}, "):
            read_weights(tmp_path)
    else:
        read_weights(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    read_weights(tmp_path)


@pytest.mark.parametrize("same", [True, False])
def test_shards_with_different_values_under_one_name_are_refused(same: bool, tmp_path: Path) -> None:
    """Engines took those of the file that they read last, whatever the index says."""
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for number, file in enumerate(files):
        shared = {"model.norm.weight": np.full(2, 0 if same else number, np.float32)}
        save_file({**shared, f"{number}": np.zeros(2, np.float32)}, tmp_path / file)
    index = {"model.norm.weight": files[0], "0": files[0], "1": files[1]}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_text("{}")
    if same:
        read_weights(tmp_path)
    else:
        with pytest.raises(Unfit, match=r"model\.norm\.weight both in model-00001.* and in model-00002"):
            read_weights(tmp_path)


@pytest.mark.parametrize("changed", ["num_key_value_heads", "intermediate_size", "head_dim", "num_attention_heads"])
def test_a_chat_model_whose_config_is_anothers_is_refused(changed: str, tmp_path: Path) -> None:
    """Where layers are larger than the config says, vLLM took the first rows or columns."""
    write_base(tmp_path)
    reported = {**json.loads((tmp_path / "config.json").read_text()), "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(reported))
    assert read_weights(tmp_path).parameters > 0
    (tmp_path / "config.json").write_text(json.dumps({**reported, changed: reported[changed] // 2}))
    with pytest.raises(Unfit, match=r"has model\.layers\.0\..*_proj\.weight of shape \[.*where config.json gives \["):
        read_weights(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**reported, "vocab_size": reported["vocab_size"] // 2}))
    with pytest.raises(Unfit, match=r"has model\.embed_tokens\.weight of shape \[256, 128\], where .* \[128, 128\]"):
        read_weights(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**reported, changed: "x", "vocab_size": None}))
    read_weights(tmp_path)


@pytest.mark.parametrize("lost", ["model.embed_tokens", "model.layers.0.mlp", "model.layers.1.self_attn"])
def test_a_plain_model_that_lost_a_whole_module_is_refused(lost: str, tmp_path: Path) -> None:
    """vLLM asks after its norms alone."""
    file = write_base(tmp_path) / "model.safetensors"
    whole = {name: np.zeros(view.shape, np.float32) for name, view in load_torch(file).items()}
    save_file({name: tensor for name, tensor in whole.items() if not name.startswith(lost)}, file)
    with pytest.raises(Unfit, match=rf"has no {re.escape(lost)}"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "tied", "name", "refused"),
    [
        ("CohereForCausalLM", False, "lm_head.weight", True), ("CohereForCausalLM", True, "lm_head.weight", False),
        ("LlamaForCausalLM", False, "lm_head.weight", False), ("Lfm2ForCausalLM", False, "lm_head.weight", True),
        ("Qwen3ForCausalLM", False, "model.layers.0.self_attn.o_proj.bias", True),
        ("Ernie4_5ForCausalLM", False, "model.layers.0.mlp.up_proj.bias", True),
        ("Ernie4_5ForCausalLM", False, "model.norm.bias", False),
        ("Gemma3nForCausalLM", True, "model.embed_tokens_per_layer.weight", True),
        ("Gemma3nForConditionalGeneration", True, "model.language_model.embed_tokens_per_layer.weight", False),
    ],
)  # fmt: skip
def test_weights_that_vllm_passes_over_are_refused(
    architecture: str, tied: bool, name: str, refused: bool, tmp_path: Path
) -> None:
    """Beside transformers the logprobs of such models were off by 1 to 8."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], "tie_word_embeddings": tied}))
    save_file(
        {name: np.zeros(2, np.float32), "model.norm.weight": np.zeros(2, np.float32)}, tmp_path / "model.safetensors"
    )
    if refused:
        with pytest.raises(Unfit, match=rf"has {re.escape(name)}, which transformers uses"):
            read_weights(tmp_path)
    else:
        assert read_weights(tmp_path).parameters == 4


def test_networks_that_are_made_otherwise_have_lost_nothing(tmp_path: Path) -> None:
    assert read_weights(layers(folder=tmp_path)).parameters == 2 * 24 * 2
    gemma = {"text_config": {"attention_k_eq_v": True}}
    read_weights(layers(without="model.layers.1.self_attn.v_proj", config=gemma, folder=tmp_path))
    plain = ["mlp.up_proj", "mlp.down_proj", "self_attn.q_proj", "self_attn.gate_proj", "self_attn.kv_a_proj_with_mqa"]
    save_file({f"model.layers.0.{name}.weight": np.zeros(2, np.float32) for name in plain},
              tmp_path / "model.safetensors")  # fmt: skip
    assert read_weights(tmp_path).parameters == 10


KINDS = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "U8": np.uint8, "BOOL": np.bool_}

SHAPES = st.lists(st.integers(0, 5), max_size=3)


@settings(max_examples=50)
@given(
    tensors=st.dictionaries(st.text("abc.", min_size=1, max_size=8), st.tuples(st.sampled_from(sorted(KINDS)), SHAPES))
)
def test_headers_tell_the_bytes(
    tensors: dict[str, tuple[str, list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    arrays: dict[str, Any] = {name: np.zeros(shape, dtype=KINDS[kind]) for name, (kind, shape) in tensors.items()}
    save_file(arrays, folder / "model.safetensors")
    weights = read_weights(folder)
    assert weights.bytes == weights.loaded_bytes(None) == sum(array.nbytes for array in arrays.values())
    assert weights.parameters == sum(array.size for array in arrays.values())
    floats = sum(array.size for array in arrays.values() if array.dtype.kind == "f")
    assert weights.loaded_bytes(2) == 2 * floats + sum(a.nbytes for a in arrays.values() if a.dtype.kind != "f")
