"""Vision models, whose text config only has values other than the defaults, are read as in transformers.

The configs are those of public models, without fields that no size depends on.
"""

from typing import Any

import pytest

from launch.proposal.propose import propose
from launch.request import ModelRequest
from registry.files.shape import DEFAULTS, FIELDS, shape_of
from registry.recipes.definition import Task
from registry.recipes.fields import HubSource
from tests.unit.launch.listings import listing_of
from tests.unit.launch.public.test_known_models import MACHINE

SIGLIP = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
          "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False}  # fmt: skip
LINEAR = {"factor": 8.0, "rope_type": "linear"}


def gemma3(hidden: int, feed_forward: int, layers: int, **more: object) -> dict[str, Any]:
    text = {"hidden_size": hidden, "intermediate_size": feed_forward, "model_type": "gemma3_text",
            "num_hidden_layers": layers, "rope_scaling": LINEAR, "sliding_window": 1024, **more}  # fmt: skip
    return {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text,
            "vision_config": SIGLIP, "mm_tokens_per_image": 256, "torch_dtype": "bfloat16"}  # fmt: skip


VICUNA = {"max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-05, "vocab_size": 32064}
PUBLIC = {
    "gemma-3-4b-it": (4.3e9, gemma3(2560, 10240, 34)),
    "gemma-3-12b-it": (12.2e9, gemma3(3840, 15360, 48, num_attention_heads=16, num_key_value_heads=8)),
    "gemma-3-27b-it": (
        27.4e9, gemma3(5376, 21504, 62, num_attention_heads=32, num_key_value_heads=16, head_dim=128),
    ),
    "llava-1.5-7b-hf": (
        7.1e9,
        {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "torch_dtype": "float16",
         "text_config": VICUNA, "image_token_index": 32000},
    ),
    "llava-1.5-13b-hf": (
        13.4e9,
        {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "torch_dtype": "float16",
         "text_config": {**VICUNA, "hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40,
                         "num_hidden_layers": 40, "num_key_value_heads": 40}, "image_token_index": 32000},
    ),
}  # fmt: skip
"""The approximate number of parameters, and config.json."""


@pytest.mark.parametrize("name", PUBLIC)
def test_it_can_be_added_with_the_sizes_that_transformers_reads(name: str) -> None:
    from transformers import AutoConfig

    parameters, config = PUBLIC[name]
    settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    text = AutoConfig.for_model(config["model_type"], **settings).get_text_config()
    shape = shape_of(config)
    assert (shape.layers, shape.hidden, shape.feed_forward) == (
        text.num_hidden_layers, text.hidden_size, text.intermediate_size,
    )  # fmt: skip
    assert (shape.heads, shape.kv_heads, shape.head_size) == (
        text.num_attention_heads, text.num_key_value_heads, text.head_dim,
    )  # fmt: skip
    assert (shape.vocabulary, shape.context) == (text.vocab_size, text.max_position_embeddings)
    listing = listing_of({"config.json": config}, {"model.safetensors": int(2 * parameters)})
    found = propose(listing, HubSource(hub=f"org/{name}", revision="0" * 40), ModelRequest("x"), MACHINE)
    assert found.recipe.task is Task.CHAT
    assert found.recipe.context_length is not None
    assert 0 < found.recipe.context_length <= shape.context


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_those_of_transformers(kind: str) -> None:
    """Defaults that it derives from other sizes are not in the table."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    stock = CONFIG_MAPPING[kind]()
    wider = CONFIG_MAPPING[kind](num_attention_heads=2 * stock.num_attention_heads, hidden_size=4 * stock.hidden_size)
    for name, value in zip(FIELDS, DEFAULTS[kind], strict=True):
        reported = getattr(stock, name, None)
        reported = max(reported) if isinstance(reported, list) else reported
        fixed = name in ("num_attention_heads", "hidden_size") or getattr(wider, name, None) == getattr(
            stock, name, None
        )
        assert value == (reported if fixed else None), name


def test_a_size_for_each_layer_is_the_widest() -> None:
    config = {"text_config": {"model_type": "gemma3n_text", "intermediate_size": [8192, 16384], "vocab_size": 262400}}
    assert shape_of(config).feed_forward == 16384
