"""The tensors that assign adapters to tokens for a GPU's kernels equal vLLM's own, on the CPU."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from models.chat.vllm.adapters import metadata
from tests.contract.vllm.stock import SimpleLoRARequest, stock

pytestmark = pytest.mark.real
PLACES, TOKENS, REQUESTS, VOCABULARY = 5, 700, 40, 1000
KERNEL = (
    "token_lora_mapping", "token_indices_sorted_by_lora_ids", "active_lora_ids", "num_tokens_per_lora",
    "lora_token_start_loc", "no_lora_flag_cpu", "num_active_loras_cpu",
)  # fmt: skip
BASE = ("_token_lora_indices", "_sampler_indices", "_sampler_indices_padded", "_embeddings_indices")


def wrapper(specialize: bool) -> Any:
    """Return vLLM's unpatched wrapper, in which undefined values are 77."""
    module = stock("vllm.lora.punica_wrapper.punica_gpu")
    vars(module)["LoRAKernelMeta"] = import_module(
        "vllm.lora.ops.triton_ops.lora_kernel_metadata"
    ).LoRAKernelMeta  # vLLM imports it only if Triton has a device
    config = SimpleNamespace(max_loras=PLACES, specialize_active_lora=specialize)
    made = module.PunicaWrapperGPU(TOKENS, REQUESTS, torch.device("cpu"), lora_config=config)
    for name in BASE:
        getattr(made, name).fill_(77)
    for meta in (made.token_mapping_meta, made.prompt_mapping_meta):
        for name in KERNEL[:2]:
            getattr(meta, name).fill_(77)
    return made


def tensors(made: Any) -> dict[str, torch.Tensor]:
    metas = {"token": made.token_mapping_meta, "prompt": made.prompt_mapping_meta}
    found = {f"{kind}.{name}": getattr(meta, name) for kind, meta in metas.items() for name in KERNEL}
    return found | {name: getattr(made, name) for name in BASE}


class Batches:
    """Random batches of single tokens, prompts, or both; without adapters, with some, or with all."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.index_to_id: list[int | None] = [None] * PLACES

    def swap(self) -> None:
        """Put another adapter into a place, or empty it."""
        empty = self._random.random() < 0.2
        new = int(self._random.integers(1000, 1_000_000))
        self.index_to_id[self._random.integers(PLACES)] = None if empty else new

    def next(self) -> tuple[Any, Any, Any]:
        """Return for each request its adapter, number of tokens and number of samples."""
        number = int(self._random.integers(1, REQUESTS + 1))
        placed = [one for one in self.index_to_id if one is not None]
        choices = [[0], [*placed, 0], placed or [0]][self._random.integers(3)]
        ids = self._random.choice(choices, number).astype(np.int32)
        counts = np.ones(number, np.int32)
        if self._random.random() < 0.6:
            longest = (TOKENS - number) // number
            counts += self._random.integers(0, longest + 1, number, dtype=np.int32)
        return ids, counts, self._random.integers(0, 3, number, dtype=np.int32)


@pytest.mark.parametrize("specialize", [False, True])
def test_tensors_equal_vllms_own_over_random_batches(specialize: bool) -> None:
    theirs, ours, batches = wrapper(specialize), wrapper(specialize), Batches(seed=44)
    mapping_of = import_module("vllm.lora.layers").LoRAMapping
    for step in range(400):
        if step % 3 == 0:
            batches.swap()
        ids, counts, samples = batches.next()
        mapping = mapping_of(tuple(ids.repeat(counts)), tuple(ids.repeat(samples)), is_prefill=True)
        arguments = (mapping, batches.index_to_id, PLACES + 1, VOCABULARY)
        theirs.update_metadata(*arguments)
        metadata._update_metadata(ours, *arguments)
        expected = tensors(theirs)
        for name, tensor in tensors(ours).items():
            assert torch.equal(tensor, expected[name]), (step, name)
        assert ours.indices_len == theirs.indices_len
        assert ours.is_prefill is theirs.is_prefill


def test_an_adapter_without_a_place_is_an_error_as_in_vllm() -> None:
    mapping = import_module("vllm.lora.layers").LoRAMapping((7, 0), (7, 0))
    with pytest.raises(KeyError):
        wrapper(False).update_metadata(mapping, [None, 8], 3, VOCABULARY)
    with pytest.raises(KeyError):
        metadata._update_metadata(wrapper(False), mapping, [None, 8], 3, VOCABULARY)


def test_requests_of_the_second_runner_have_the_same_adapters_as_in_vllm() -> None:
    state = stock("vllm.v1.worker.gpu.lora_utils").LoraState(REQUESTS)
    batches = Batches(seed=45)
    for _ in range(PLACES):
        batches.swap()
    for _ in range(50):
        ids, counts, _ = batches.next()
        names = [f"request-{number}" for number in range(len(ids))]
        for number, adapter_id in enumerate(ids):
            state.add_request(names[number], number, SimpleLoRARequest(int(adapter_id)) if adapter_id else None)
        order = np.random.default_rng(1).permutation(len(ids))
        arguments = ([names[number] for number in order], order, counts[order])
        assert metadata._make_lora_inputs(state, *arguments) == state.make_lora_inputs(*arguments)
        for name in names:
            state.remove_request(name)


@pytest.mark.parametrize(
    ("captured", "number", "reported"), [([], 3, 3), ([1, 4, 8], 3, 4), ([1, 4, 8], 4, 4), ([1, 4, 8], 9, 9)]
)
def test_the_number_of_adapters_is_that_of_a_captured_graph(captured: list[int], number: int, reported: int) -> None:
    assert metadata._captured(captured, number) == reported
