"""Places written by GpuCopier hold bit for bit what vLLM's layers would have put there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.chat.vllm.adapters import gpu_copy, read, stage
from models.chat.vllm.adapters.read import read_adapter
from tests.contract.vllm import manager_fixtures as fixtures

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patched_loader", "unpinned")]
RANK = 16
CPU = torch.device("cpu")


def read_lora(worker: Any, folder: Path, number: int) -> Any:
    with read.for_gpu(torch.bfloat16):
        return read_adapter(worker, number, str(folder))


def contents(manager: Any) -> list[torch.Tensor]:
    """Return the bits of all places."""
    return [
        stacked.view(torch.int16)
        for module in manager.modules.values()
        for stacked in (*module.lora_a_stacked, *module.lora_b_stacked)
    ]


RANKS = st.dictionaries(st.sampled_from(fixtures.names()), st.sampled_from([1, 5, 8, RANK]), min_size=1)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    ranks=st.lists(st.one_of(RANKS, st.just(dict.fromkeys(fixtures.names(), RANK))), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_places_hold_what_the_layers_would_put_there(
    tmp_path: Path, ranks: list[dict[str, int]], dtype: torch.dtype
) -> None:
    """Adapters take turns in the same two places, where nothing of the previous one may be left."""
    ours, theirs = fixtures.worker_manager(RANK), fixtures.worker_manager(RANK)
    writer = gpu_copy.GpuCopier(ours._adapter_manager)
    for number, chosen in enumerate(ranks, 1_000):
        fixtures.write_adapter(tmp_path, chosen, number, dtype)
        sources = writer.sources(read_lora(ours, tmp_path, number))
        assert sources is not None
        writer.write(sources, number % 2)
        stage.write_place(theirs._adapter_manager, read_lora(theirs, tmp_path, number), number % 2)
        pairs = zip(contents(ours._adapter_manager), contents(theirs._adapter_manager), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_an_adapter_that_is_not_in_one_piece_is_left_to_the_layers(tmp_path: Path) -> None:
    worker = fixtures.worker_manager(RANK)
    fixtures.write_adapter(tmp_path, dict.fromkeys(fixtures.names(), 8), 0, torch.bfloat16)
    lora = read_lora(worker, tmp_path, 1_000)
    weights = lora.loras["model.layers.1.o_proj"]
    weights.lora_a = weights.lora_a.clone()
    assert gpu_copy.GpuCopier(worker._adapter_manager).sources(lora) is None


def test_unknown_and_sharded_layers_are_left_to_vllm() -> None:
    """The fixture's layers are not vLLM's, and with several workers each has a part of every layer."""
    from vllm.lora import layers

    class Layer:
        set_lora = layers.MergedQKVParallelLinearWithLoRA.set_lora
        lora_a_stacked = lora_b_stacked = (torch.zeros(2, 1, 4, 4),)
        tp_size = 1

    manager = fixtures.worker_manager(RANK)._adapter_manager
    assert gpu_copy.gpu_copier(manager) is None
    manager.modules = {"a": Layer()}
    assert gpu_copy.gpu_copier(manager) is not None
    Layer.tp_size = 2
    assert gpu_copy.gpu_copier(manager) is None


def test_all_of_vllms_plain_layers_are_written_by_it() -> None:
    """Layers that write adapters in another way are left to vLLM, but those of Llama-like models must not be."""
    from vllm.lora import layers

    plain = {layers.ColumnParallelLinearWithLoRA, layers.QKVParallelLinearWithLoRA, layers.RowParallelLinearWithLoRA}
    plain |= {layers.MergedColumnParallelLinearWithLoRA, layers.MergedQKVParallelLinearWithLoRA}
    plain |= {layers.ReplicatedLinearWithLoRA}
    for kind in plain:
        layer = kind.__new__(kind)
        torch.nn.Module.__init__(layer)
        layer.tp_size, layer.lora_a_stacked, layer.lora_b_stacked = 1, (torch.zeros(1, 1, 1, 1),), ()
        manager: Any = fixtures.worker_manager(RANK)._adapter_manager
        manager.modules = {"a": layer}
        assert gpu_copy.gpu_copier(manager) is not None, kind
