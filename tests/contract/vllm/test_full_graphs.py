"""Full CUDA graphs for steps with prompts: vLLM's flag, and what vLLM makes of it for a GPU's attention."""

from importlib import import_module
from pathlib import Path

import pytest

from models.chat import settings
from models.chat.vllm import launch
from registry.errors import Unfit
from tests.unit.registry.makers import recipe

pytestmark = pytest.mark.real


def mode(value: str) -> str:
    """Return the mode of graphs in vLLM's arguments for a recipe with this flag."""
    flags = {"compilation_config": f'{{"cudagraph_mode": "{value}"}}'}
    given = recipe("m", engine={"name": "vllm", "flags": flags}, memory={"kv_cache": "1GiB"}, dtype="bfloat16")
    arguments = settings.arguments(given, Path("/weights"), "cuda:0", launch.parser())
    assert arguments.cudagraph_capture_sizes == settings.capture_sizes(
        given.batching.sequences, given.batching.max_tokens
    )
    return str(arguments.compilation_config.cudagraph_mode.name)


def test_the_flag_requests_full_graphs_of_our_sizes() -> None:
    assert mode("FULL") == "FULL"
    with pytest.raises(Unfit, match="recipe m: it does not know 'WHOLE', in compilation_config"):
        mode("WHOLE")


@pytest.mark.parametrize(
    ("support", "found"), [("ALWAYS", "FULL"), ("UNIFORM_BATCH", "FULL_AND_PIECEWISE"), ("NEVER", None)]
)
def test_vllm_reduces_graphs_to_what_the_attention_supports(support: str, found: str | None) -> None:
    """FlashAttention 3 on Hopper supports all; others get full graphs only for decoding, with a warning."""
    supports = import_module("vllm.v1.attention.backend").AttentionCGSupport
    config = import_module("vllm.config.compilation").CompilationConfig(cudagraph_mode="FULL")
    config.splitting_ops = list(config._attention_ops)
    resolve = config.resolve_cudagraph_mode_and_sizes
    if found is None:
        with pytest.raises(ValueError, match=r"CUDAGraphMode.FULL is not supported with FLASH_ATTN"):
            resolve(supports[support], "FLASH_ATTN", use_v2_model_runner=True)
    else:
        assert resolve(supports[support], "FLASH_ATTN", use_v2_model_runner=True).name == found
