"""Recipes for a hundred public models are valid, and their memory is what transformers and vLLM count."""

from typing import Any

import pytest

from launch.files.listing import Listing
from launch.proposal.draft import Machine
from launch.proposal.propose import Proposal, propose
from launch.request import ModelRequest
from models.estimate import kv_bytes_per_token
from registry.errors import Unfit
from registry.files.shape import shape_of
from registry.recipes.definition import Task
from registry.recipes.fields import HubSource
from tests.unit.launch.listings import listing_of
from tests.unit.launch.public.known_models import CHAT, KnownModel

GIB = 2**30
MACHINE = Machine("cuda", 8 * 141 * GIB * 85 // 100, 90)
"""A machine that is large enough for all of them."""


def proposal(known: KnownModel, machine: Machine = MACHINE) -> Proposal:
    each = 2 if "dtype" in known.config else 4  # where nothing is said, the files hold 32 bits
    listing: Listing = listing_of({"config.json": known.config}, {"model.safetensors": known.parameters * each})
    return propose(listing, HubSource(hub=f"org/{known.name}", revision="0" * 40), ModelRequest("x"), machine)


def counted(known: KnownModel) -> int:
    """Return the number of parameters in transformers, without memory for any."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings: dict[str, Any] = {k: v for k, v in known.config.items() if k not in ("architectures", "model_type")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(known.kind, **settings))
    return sum(parameter.numel() for parameter in model.parameters())


def test_there_are_a_hundred() -> None:
    assert len({known.name for known in CHAT}) == len(CHAT) >= 100


@pytest.mark.parametrize("known", CHAT, ids=lambda known: known.name)
def test_the_recipe_is_valid_and_its_weights_are_within_a_tenth(known: KnownModel) -> None:
    found = proposal(known)
    assert found.recipe.task is Task.CHAT
    assert all(choice.why for choice in found.choices)
    assert found.recipe.context_length is not None
    assert 0 < found.recipe.context_length <= known.context
    exact = counted(known)
    assert found.estimate.weights == pytest.approx(exact * 2, rel=0.1)
    assert known.parameters == pytest.approx(exact, rel=0.02), "the number in the table"


@pytest.mark.parametrize("known", [k for k in CHAT if "kv_lora_rank" not in k.more], ids=lambda known: known.name)
def test_its_kv_cache_is_what_vllm_counts(known: KnownModel) -> None:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    found = proposal(known)
    shape = shape_of(known.config)
    size = 16
    spec = FullAttentionSpec(block_size=size, num_kv_heads=shape.kv_heads, head_size=shape.head_size,
                             dtype=torch.bfloat16)  # fmt: skip
    per_token = spec.page_size_bytes * known.layers // size
    assert kv_bytes_per_token(found.recipe, shape) == pytest.approx(per_token, rel=0.1)
    cache = found.recipe.memory.kv_cache
    assert cache is not None
    assert cache >= per_token * (found.recipe.context_length or 0), "vLLM needs at least one whole context"


def test_latent_attention_is_refused_on_a_cpu() -> None:
    """On a CPU, vLLM's logprobs of a token differ between prompt and answer, unlike those of a Llama."""
    known = next(k for k in CHAT if k.name == "DeepSeek-V2-Lite-Chat")
    with pytest.raises(Unfit, match="MLA") as refused:
        proposal(known, Machine("cpu", 200 * GIB))
    assert refused.value.code == "not_on_cpu"
    assert proposal(known).recipe.id == "deepseek-v2-lite-chat"


def test_deepseek_keeps_one_latent_vector_for_each_token() -> None:
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    for known in (k for k in CHAT if "kv_lora_rank" in k.more):
        spec = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=512 + 64, dtype=torch.bfloat16)
        assert kv_bytes_per_token(proposal(known).recipe, shape_of(known.config)) == pytest.approx(
            spec.page_size_bytes * known.layers // 16, rel=0.1
        )


@pytest.mark.parametrize("gib", [24, 80])
def test_on_smaller_machines_the_cache_takes_only_the_remaining_memory(gib: int) -> None:
    machine = Machine("cuda", gib * GIB * 85 // 100, 90)
    for known in CHAT:
        found = proposal(known, machine)
        if found.estimate.total > machine.budget:  # then nothing would have made it fit
            room = machine.budget - (found.estimate.total - found.estimate.kv_cache)
            least = kv_bytes_per_token(found.recipe, shape_of(known.config)) * 512 * 5 // 4
            assert room < least, known.name
