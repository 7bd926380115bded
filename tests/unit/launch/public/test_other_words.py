"""Public models with other names for their sizes in config.json, or whose keys and values differ in vLLM.

The configs are those of their makers, without fields that no size depends on.
"""

import math
from typing import Any

import pytest

from launch.files.detect import detect
from launch.proposal.chat import longest_context
from launch.proposal.draft import Machine
from launch.proposal.propose import propose
from launch.request import ModelRequest
from registry.files.shape import shape_of
from registry.recipes.fields import HubSource
from tests.unit.launch.listings import listing_of
from tests.unit.launch.public.test_known_models import MACHINE

FALCON = {"architectures": ["FalconForCausalLM"], "model_type": "falcon", "torch_dtype": "bfloat16"}
OMNI = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4,
        "num_hidden_layers": 28, "vocab_size": 152064, "max_position_embeddings": 32768,
        "model_type": "qwen2_5_omni_text"}  # fmt: skip
# config.json; layers, KV heads and head size as vLLM keeps them; the longest context
PUBLIC: dict[str, tuple[dict[str, Any], tuple[int, int, int], int | None]] = {
    "falcon-7b-instruct": (
        {**FALCON, "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71,
         "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024},
        (32, 1, 64), None,
    ),
    "falcon-40b-instruct": (
        {**FALCON, "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
         "multi_query": True, "new_decoder_architecture": True, "vocab_size": 65024},
        (60, 8, 64), None,
    ),
    "glm-4-9b-chat": (
        {"architectures": ["ChatGLMModel"], "model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696,
         "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2, "num_attention_heads": 32,
         "num_layers": 40, "padded_vocab_size": 151552, "seq_length": 131072, "torch_dtype": "bfloat16"},
        (40, 2, 128), 131072,
    ),
    "dbrx-instruct": (
        {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40,
         "max_seq_len": 32768, "vocab_size": 100352, "torch_dtype": "bfloat16",
         "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000}},
        (40, 8, 128), 32768,
    ),
    "Step-3.5-Flash": (
        {"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "hidden_size": 4096, "head_dim": 128,
         "intermediate_size": 11264, "num_attention_heads": 64, "num_attention_groups": 8, "num_hidden_layers": 45,
         "vocab_size": 128896, "max_position_embeddings": 262144, "torch_dtype": "bfloat16"},
        (45, 8, 128), 262144,
    ),
    "MiniCPM3-4B": (
        {"architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3", "hidden_size": 2560,
         "intermediate_size": 6400, "num_attention_heads": 40, "num_key_value_heads": 40, "num_hidden_layers": 62,
         "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
         "max_position_embeddings": 32768, "vocab_size": 73448, "torch_dtype": "bfloat16"},
        (62, 40, 96), 32768,
    ),
    "Qwen2.5-Omni-7B": (
        {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni",
         "thinker_config": {"model_type": "qwen2_5_omni_thinker", "torch_dtype": "bfloat16", "text_config": OMNI,
                            "vision_config": {}, "audio_config": {}}},
        (28, 4, 128), 32768,
    ),
    "InternVL3-1B": (
        {"architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "torch_dtype": "bfloat16",
         "llm_config": {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
                        "max_position_embeddings": 32768, "num_attention_heads": 14, "num_hidden_layers": 24,
                        "num_key_value_heads": 2, "vocab_size": 151674}},
        (24, 2, 64), 32768,
    ),
    "c4ai-command-r-v01": (
        {"architectures": ["CohereForCausalLM"], "model_type": "cohere", "hidden_size": 8192,
         "intermediate_size": 22528, "max_position_embeddings": 8192, "model_max_length": 131072,
         "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64, "vocab_size": 256000,
         "torch_dtype": "float16"},
        (40, 64, 128), 131072,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_it_can_be_added_with_the_keys_and_values_that_vllm_keeps(name: str) -> None:
    config, kept, longest = PUBLIC[name]
    shape = shape_of(config)
    assert (shape.layers, shape.kv_heads, shape.head_size, shape.latent) == (*kept, 0)
    assert longest_context(config) == longest
    listing = listing_of({"config.json": config}, {"model.safetensors": 14 * 10**9})
    found = propose(listing, HubSource(hub=f"org/{name}", revision="0" * 40), ModelRequest("x"), MACHINE)
    assert found.recipe.context_length == min(longest or shape.context, 32768)
    assert found.estimate.weights == pytest.approx(14e9, rel=0.01)
    layers, heads, size = kept
    per_token = layers * 2 * heads * size * 2
    assert found.estimate.kv_cache >= found.recipe.context_length * per_token, "vLLM needs at least one context"
    assert found.estimate.kv_cache <= max(8 * 4096, 32768 * 5 // 4) * per_token + 2**20


def test_an_omni_model_is_described_to_take_more_than_text() -> None:
    listing = listing_of({"config.json": PUBLIC["Qwen2.5-Omni-7B"][0]}, {"model.safetensors": 10**9})
    assert any("images or sound" in note for note in detect(listing).notes)


def test_layers_are_counted_if_their_number_is_not_in_the_config() -> None:
    """As in the config of a Nemotron-H that transformers 5 writes."""
    config = {"model_type": "nemotron_h", "layers_block_type": ["mamba", "moe", "attention", "moe"],
              "hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
              "vocab_size": 131072}  # fmt: skip
    assert shape_of(config).layers == 4


def test_each_layer_of_a_longcat_has_two_attentions() -> None:
    config = {"model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "num_attention_heads": 64,
              "kv_lora_rank": 512, "qk_rope_head_dim": 64, "vocab_size": 131072}  # fmt: skip
    assert shape_of(config).kv_values_per_token == 2 * 28 * (512 + 64)


def test_the_smallest_of_several_context_lengths_counts() -> None:
    """vLLM refuses larger ones at the load."""
    assert longest_context({"max_position_embeddings": 8192, "max_sequence_length": 2048}) == 2048


@pytest.mark.parametrize(
    ("name", "hidden", "layers", "heads", "head_dim", "mamba"),
    [
        ("Falcon-H1-0.5B-Instruct", 1024, 36, 8, 64, (24, 64, 128)),
        ("Falcon-H1-1.5B-Instruct", 2048, 24, 8, 128, (48, 64, 256)),
        ("Falcon-H1-7B-Instruct", 3072, 44, 12, 128, (24, 128, 256)),
    ],
)
@pytest.mark.parametrize("gib", [20, 68])
def test_the_cache_of_a_falcon_h1_holds_a_state_for_each_request(
    name: str, hidden: int, layers: int, heads: int, head_dim: int, mamba: tuple[int, int, int], gib: int
) -> None:
    """vLLM refuses a smaller cache at the load, before CUDA graphs. Each block of it has one for each layer."""
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator

    number, size, values = mamba
    config = {
        "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": head_dim,
        "mamba_n_heads": number, "mamba_d_head": size, "mamba_d_state": values, "mamba_d_ssm": number * size,
        "mamba_n_groups": 1, "mamba_d_conv": 4, "intermediate_size": 4 * hidden, "vocab_size": 65537,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    }  # fmt: skip
    listing = listing_of({"config.json": config}, {"model.safetensors": layers * 330 * 10**6})
    source = HubSource(hub=f"tiiuae/{name}", revision="0" * 40)
    machine = Machine("cuda", gib * 2**30, 90)
    found = propose(listing, source, ModelRequest("x"), machine)
    shapes = MambaStateShapeCalculator.mamba2_state_shape(1, number * size, 1, number, size, values, 4)
    block = layers * 2 * sum(math.prod(one) for one in shapes)
    assert found.estimate.kv_cache // block >= found.recipe.batching.sequences >= 8
    assert found.estimate.total <= machine.budget
