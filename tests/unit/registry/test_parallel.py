"""Models on several devices: valid recipes, former keys, and the bytes on each device."""

import pytest

from models.engines import ENGINES, GIB
from models.estimate import estimate_of, kv_on_each
from registry.errors import Unfit
from registry.files.shape import Shape, shape_of
from registry.files.weights import Weights
from registry.recipes.definition import Parallel, Recipe
from registry.recipes.loading import faults_of, load_documents
from tests.unit.registry.makers import recipe
from tests.unit.registry.recipes.files import GOOD, Write

CHAT = """
id: m
version: 1
task: chat
source: {path: weights}
engine: {name: vllm, flags: {seed: 1, FLAG}}
"""
BIG = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
WEIGHTS = Weights({"BF16": 70_553_706_496}, (), ("model.safetensors",))
PLAIN = {"adapters": {"device": 0}, "kv_cache": "16GiB"}


def spread(**counts: int) -> Recipe:
    return recipe("m", memory=PLAIN, parallel=counts)


@pytest.mark.parametrize("flag", ["tensor_parallel_size", "tensor-parallel-size"])
def test_former_recipes_are_read_with_a_note(write: Write, flag: str) -> None:
    documents = load_documents(write(CHAT.replace("FLAG", f"{flag}: 2, pipeline_parallel_size: 4")))
    one = documents.models[0]
    assert (one.parallel, one.engine.flags) == (Parallel(tensor=2, pipeline=4), {"seed": 1})
    assert documents.notes == (
        f"m: engine.flags.{flag} is read as parallel.tensor; write it as parallel.tensor",
        "m: engine.flags.pipeline_parallel_size is read as parallel.pipeline; write it as parallel.pipeline",
    )
    assert Recipe.model_validate_json(one.model_dump_json()) == one
    again = load_documents(write(GOOD.format("m")))
    assert (again.models[0].parallel.devices, again.notes) == (1, ())


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("parallel: {tensor: 2}", "'engine.flags': remove the flag; the recipe has parallel.tensor, too"),
        ("parallel: 2", "'parallel' cannot be 2; write its keys below it, or leave 'parallel' out"),
        ("parallel: {tensor: 0}", "'parallel.tensor' cannot be 0; write 1 or more"),
        ("tensor_parallel_size: 2", "unknown key 'tensor_parallel_size'; vLLM's 'tensor_parallel_size' is "
         "'parallel.tensor' here"),
        ("residency: {sleep: always}", "'residency.sleep': a model on 2 devices (tensor 2) cannot sleep; write auto "
         "or never"),
        ("parallel: {pipeline: 2}\nmemory: {adapters: {device: 1, host: 1}}",
         "'parallel': only tensor parallel goes with memory.adapters; leave pipeline and data out"),
    ],
)  # fmt: skip
def test_invalid_combinations_are_faults(more: str, fault: str) -> None:
    assert fault in faults_of(CHAT.replace("FLAG", "tensor_parallel_size: 2") + more)


def test_other_tasks_use_one_device() -> None:
    text = "id: m\nversion: 1\ntask: embed\nsource: {path: x}\nengine: {name: sentence-transformers}\n"
    assert faults_of(text) == []
    assert faults_of(text + "parallel: {tensor: 2}\n") == [
        "'parallel': only task chat runs on several devices; leave 'parallel' out"
    ]


def shape(**more: int) -> Shape:
    return shape_of({**BIG, **more})


@pytest.mark.parametrize(
    ("counts", "kind", "sizes", "why"),
    [
        ({"tensor": 3}, "cuda", {}, "parallel.tensor is 3: its 64 attention heads do not divide by that "
         "(64 = 3 x 21 + 1); write one of 1, 2, 4, 8, 16, 32, 64."),
        ({"tensor": 6}, "cuda", {"num_attention_heads": 12, "num_key_value_heads": 4},
         "parallel.tensor is 6: its 4 heads of keys and values cannot be divided equally"),
        ({"pipeline": 2}, "cpu", {}, "parallel.pipeline is 2: vLLM's CPU build does not start with that"),
        ({"pipeline": 4}, "cuda", {"num_hidden_layers": 3}, "parallel.pipeline is 4: it has 3 layers"),
        ({"data": 2}, "cuda", {}, "parallel.data is 2: it has no experts to distribute"),
    ],
)  # fmt: skip
def test_a_split_that_the_network_does_not_allow_is_refused(
    counts: dict[str, int], kind: str, sizes: dict[str, int], why: str
) -> None:
    with pytest.raises(Unfit, match="parallel") as caught:
        estimate_of(spread(**counts), WEIGHTS, shape(**sizes), kind)  # type: ignore[arg-type]
    assert caught.value.message.startswith(why)
    assert (caught.value.code, caught.value.param) == ("bad_recipe", "parallel")


def test_data_parallel_requires_a_mixture_of_experts() -> None:
    needs = estimate_of(spread(data=2), WEIGHTS, shape(num_local_experts=8), "cuda")
    assert (needs.devices, needs.weights) == (2, WEIGHTS.bytes)


def test_each_device_has_its_part() -> None:
    """With 70 billion parameters on four GPUs, each has a quarter of the weights and the cache, and a process."""
    one, four = (estimate_of(spread(tensor=count), WEIGHTS, shape(), "cuda") for count in (1, 4))
    assert (one.devices, one.weights, one.kv_cache) == (1, 141_107_412_992, 16 * GIB)
    assert (four.devices, four.weights, four.kv_cache) == (4, 35_276_853_248, 4 * GIB)
    assert (four.activations, four.overhead) == (one.activations, one.overhead)
    assert four.on_each == four.weights + four.kv_cache + four.activations + four.overhead
    assert four.total == 4 * four.on_each
    assert four.host == 4 * ENGINES["vllm"].overhead["cuda"][1]
    assert "total on each of 4 devices (cuda)" in four.explain()
    assert "2 bytes each, tensor 4" in four.explain()
    both = estimate_of(spread(tensor=2, pipeline=2), WEIGHTS, shape(), "cuda")
    assert (both.devices, both.weights, both.kv_cache) == (4, 35_276_853_248, 4 * GIB)


@pytest.mark.parametrize(
    ("tensor", "sizes", "parts"),
    [(8, {}, 8), (16, {}, 8), (4, {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 1)],
)
def test_keys_and_values_are_divided_by_heads(tensor: int, sizes: dict[str, int], parts: int) -> None:
    """Latent keys and values (MLA) have no heads, so each device has all of them."""
    assert kv_on_each(spread(tensor=tensor), shape(**sizes)) == 16 * GIB // parts


def test_places_of_adapters_are_halved_on_their_wider_side_at_most() -> None:
    room = {"adapters": {"device": 20, "host": 20, "max_rank": 16}, "kv_cache": "16GiB"}
    one, four = (
        estimate_of(recipe("m", memory=room, parallel={"tensor": count}), WEIGHTS, shape(), "cuda") for count in (1, 4)
    )
    assert one.adapter_places / 2 < four.adapter_places < one.adapter_places
    assert four.host_adapters == 4 * one.host_adapters, "each process stages for itself"
