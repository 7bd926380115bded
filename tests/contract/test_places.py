"""Adapters in places of a CPU: referred to where they were staged, or copied, they are what vLLM would write there."""

from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters import cpu_kernel, staged_file, staged_memory, vllm_places, vllm_punica, vllm_stage
from tests.contract import vllm_manager_fixtures as fixtures

pytestmark = pytest.mark.real
RANK = 16


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.lora import lora_model

    monkeypatch.setattr(lora_model, "safetensors", lora_model.safetensors)  # as it was, afterwards
    staged_file.patch(lora_model)


class Worker(vllm_stage.StagedAdapters):
    """vLLM's worker with nothing but adapters."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.model_runner = SimpleNamespace(lora_manager=fixtures.worker_manager(RANK, dtype))
        self.device = torch.device("cpu")
        self.manager = self.model_runner.lora_manager._adapter_manager

    def stage(self, number: int, path: Path) -> list[str]:
        outcome = self.stage_adapter(number, str(path))
        if outcome == ["running"]:
            wait([self._swaps().staging[number]], timeout=60)
            outcome = self.poll_adapter(number)
        return outcome

    def held(self) -> int:
        """Bytes of memory for staged adapters, once it was trimmed."""
        return self._swaps().threads.submit(lambda: self._swaps().memory.held).result(60)

    def answer(self, ids: list[int]) -> dict[str, torch.Tensor]:
        """What the layers add for rows with these adapters, each row of different inputs."""
        from vllm.lora.layers import LoRAMapping

        punica = self.manager.punica_wrapper_mapping["language_model"]
        mapping = LoRAMapping(tuple(ids), tuple(ids), is_prefill=True)
        punica.update_metadata(mapping, self.manager.lora_index_to_id, fixtures.PLACES, 100)
        found = {}
        for name, module in self.manager.modules.items():
            generator = torch.Generator().manual_seed(7)
            inputs = torch.randn(len(ids), module.lora_a_stacked[0].shape[-1], generator=generator)
            found[name] = torch.zeros(len(ids), sum(module.output_slices))
            halves = module.lora_a_stacked, module.lora_b_stacked
            punica.add_lora_linear(found[name], inputs, *halves, 1.0, module.output_slices)
        return found


def poison(worker: Worker) -> None:
    """The places hold what an earlier adapter may have left there."""
    for module in worker.manager.modules.values():
        for half in (*module.lora_a_stacked, *module.lora_b_stacked):
            half.fill_(float("nan"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 999), compiled=st.booleans(), data=st.data())
def test_places_answer_as_those_that_vllm_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, compiled: bool, data: st.DataObject
) -> None:
    """Three adapters of any ranks and modules, some of them of one form, referred to or copied in any mix, against
    `set_lora` into zeros."""
    worker, plain = Worker(), Worker()
    if not compiled:
        for one in (worker, plain):
            type(one.manager.punica_wrapper_mapping["language_model"]).roundhouse_kernel = None
    poison(worker)
    ranks: dict[str, int] = {}
    alike = 0
    for place in range(fixtures.PLACES):
        if not ranks or not data.draw(st.booleans()):
            modules = data.draw(st.lists(st.sampled_from(fixtures.names()), min_size=1, unique=True))
            ranks = {name: data.draw(st.sampled_from([1, 4, 8, 16])) for name in modules}
        else:
            alike += 1
        path = fixtures.write_adapter(tmp_path / "adapter", ranks, seed + place, torch.bfloat16)
        monkeypatch.setattr(vllm_places, "SMALL", data.draw(st.sampled_from([0, 1 << 30])))
        number = 10 + place
        assert worker.stage(number, path) == ["done", "staged"]
        assert worker.place_adapter(number, 0) == ["done"]
        lora = worker.manager._registered_adapters[number]
        vllm_stage.write_place(plain.manager, lora, place)
        plain._publish(lora, place)
        for name, module in plain.manager.modules.items():
            mine = worker.manager.modules[name]
            layer, *_ = vllm_punica._layer(
                mine.punica_wrapper, mine.lora_a_stacked, mine.lora_b_stacked, mine.output_slices
            )
            for i, (a, b) in enumerate(zip(module.lora_a_stacked, module.lora_b_stacked, strict=True)):
                pair = layer.pair(place, i)
                rank = len(pair[0]) if pair else 0
                for half, wanted in zip(pair or (), (a[place, 0, :rank], b[place, 0, :, :rank]), strict=bool(pair)):
                    assert torch.equal(half.contiguous().view(torch.int16), wanted.contiguous().view(torch.int16))
                assert not a[place, 0, rank:].any()
                assert not b[place, 0, :, rank:].any()
    assert worker._swaps().forms.used >= alike
    ids = data.draw(st.lists(st.sampled_from([0, 10, 11, 12]), min_size=1, max_size=9))
    mine, theirs = worker.answer(ids), plain.answer(ids)
    for name, found in mine.items():
        torch.testing.assert_close(found, theirs[name])


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_who_left_is_referred_to_by_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    """Its memory is the next adapter's: a place that still read there would answer with that one's weights."""
    monkeypatch.setattr(vllm_places, "SMALL", small)
    monkeypatch.setattr(staged_memory, "LARGE", 1)
    worker = Worker()
    paths = [
        fixtures.write_adapter(tmp_path / str(i), dict.fromkeys(fixtures.names(), 8), i, torch.bfloat16)
        for i in range(6)
    ]
    for number in (1, 2, 3, 4):
        assert worker.stage(number, paths[number]) == ["done", "staged"]
    assert worker.stage(5, paths[5]) == ["full"]
    one = worker.held() // 4
    for number in (1, 2, 3):
        assert worker.place_adapter(number, 0) == ["done"]
    before = {number: worker.answer([number]) for number in (1, 2, 3)}
    assert worker.place_adapter(4, 0) == ["full"]
    assert worker.place_adapter(4, 2) == ["done"]
    assert worker.drop_adapter(2) == ["done"]
    assert worker.held() == 4 * one, "three in use and one for the next"
    for _ in range(3):  # round and round in the same memory
        assert worker.stage(5, paths[5]) == ["done", "staged"]
        assert worker.held() == 4 * one
        assert worker.place_adapter(5, 1) == ["done"]
        fifth = worker.answer([5])
        assert worker.drop_adapter(5) == ["done"]
        assert worker.place_adapter(1, 0) == ["done"]
        for number in (1, 3):
            found = worker.answer([number])
            assert all(torch.equal(found[name], before[number][name]) for name in found)
        assert not all(torch.equal(fifth[name], before[1][name]) for name in fifth)
    assert worker.forget_adapters() == ["done"]
    assert worker.held() == 0


def test_one_that_was_read_takes_effect_when_it_is_placed(tmp_path: Path) -> None:
    worker = Worker()
    good = fixtures.write_adapter(tmp_path / "good", dict.fromkeys(fixtures.names(), 8), 1, torch.bfloat16)
    for number, path in ((1, good), (2, tmp_path / "nowhere")):
        assert worker.reading_adapter(number) is None
        worker.stage_adapter(number, str(path))
        reading = worker.reading_adapter(number)
        assert reading is not None
        wait([reading], timeout=60)
    assert worker.place_adapter(1, 0) == ["done"]
    assert worker.held_adapters() == [[1], [1]]
    outcome = worker.place_adapter(2, 1)
    assert (outcome[0], worker.held_adapters()) == ("failed", [[1], []])
    assert worker.place_adapter(2, 0)[0] == "failed"
    assert worker.drop_adapter(2) == ["done"]


def test_layers_in_parts_are_written_to_and_never_referred_from() -> None:
    manager = fixtures.worker_manager(RANK)._adapter_manager
    assert vllm_stage.refers(manager)
    manager.lora_config.fully_sharded_loras = True
    assert not vllm_stage.refers(manager)
    manager.lora_config.fully_sharded_loras = False
    next(iter(manager.modules.values())).tp_size = 2
    assert not vllm_stage.refers(manager)


def test_layers_with_other_tensors_are_seen(tmp_path: Path) -> None:
    """vLLM's keep theirs: should one not, what was known of their addresses must not be used."""
    worker = Worker()
    for number in (1, 2, 3):
        ranks = dict.fromkeys(fixtures.names(), 8)
        assert worker.stage(number, fixtures.write_adapter(tmp_path / "a", ranks, 1, torch.bfloat16))[0] == "done"
    assert worker.place_adapter(1, 0) == ["done"]
    assert worker.place_adapter(2, 1) == ["done"]
    before = worker.answer([2])
    module = worker.manager.modules["model.layers.1.o_proj"]
    module.lora_a_stacked = tuple(a.clone().fill_(float("nan")) for a in module.lora_a_stacked)
    assert worker.place_adapter(3, 2) == ["done"]
    after = worker.answer([3])
    assert all(torch.equal(after[name], before[name]) for name in after)


def test_a_layer_is_made_once() -> None:
    module = next(iter(fixtures.worker_manager(RANK)._adapter_manager.modules.values()))
    halves = module.lora_a_stacked, module.lora_b_stacked, module.output_slices
    layer, *_ = vllm_punica._layer(module.punica_wrapper, *halves)
    assert vllm_punica._layer(module.punica_wrapper, *halves)[0] is layer
    others = tuple(cpu_kernel.turned(b) for b in module.lora_b_stacked)
    assert vllm_punica._layer(module.punica_wrapper, halves[0], others, halves[2])[0] is not layer
