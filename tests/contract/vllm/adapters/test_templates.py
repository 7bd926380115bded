"""Adapters of a known layout, read without vLLM's loader, equal bit for bit what the loader makes of them."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.store import MARK
from models.chat.vllm.adapters import gpu_copy, read, stage
from models.chat.vllm.adapters.read import FILES, read_adapter, tensors
from tests.contract.vllm import manager_fixtures as fixtures

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patched_loader", "unpinned")]
RANK = 16
RANKS = st.dictionaries(st.sampled_from(fixtures.names()), st.sampled_from([1, 5, 8, RANK]), min_size=1)
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def stored(folder: Path, ranks: dict[str, int], seed: int, dtype: torch.dtype = torch.bfloat16, **config: Any) -> Path:
    """Write an adapter with the store's mark."""
    shutil.rmtree(folder, ignore_errors=True)
    path = fixtures.write_adapter(folder, ranks, seed, dtype, **config)
    for name in FILES:
        os.utime(path / name, ns=(MARK, MARK))
    return path


class Loader:
    """A worker's manager that counts calls of vLLM's loader."""

    def __init__(self, place_dtype: torch.dtype = torch.bfloat16) -> None:
        self.manager = fixtures.worker_manager(RANK, place_dtype)
        self.uses = 0
        load = self.manager._load_adapter

        def counted(request: Any) -> Any:
            self.uses += 1
            return load(request)

        self.manager._load_adapter = counted
        self._place_dtype = place_dtype

    def read(self, path: Path, adapter_id: int = 1, *, as_on_gpu: bool = False) -> Any:
        if not as_on_gpu:
            return read_adapter(self.manager, adapter_id, str(path))
        with read.for_gpu(self._place_dtype):
            return read_adapter(self.manager, adapter_id, str(path))


def assert_alike(found: Any, expected: Any) -> None:
    """Check that everything that vLLM can see is equal and in the same order, tensors bit for bit."""
    assert type(found) is type(expected)
    hidden = ("loras", "roundhouse_template")
    assert {k: v for k, v in vars(found).items() if k not in hidden} == {
        k: v for k, v in vars(expected).items() if k not in hidden
    }
    assert list(found.loras) == list(expected.loras)
    for name, weights in found.loras.items():
        other = expected.loras[name]
        assert type(weights) is type(other)
        halves = ("lora_a", "lora_b")
        assert {k: v for k, v in vars(weights).items() if k not in halves} == {
            k: v for k, v in vars(other).items() if k not in halves
        }
        for pair, pair_expected in zip(tensors(weights), tensors(other), strict=True):
            for half, half_expected in zip(pair, pair_expected, strict=True):
                assert (half is None) == (half_expected is None)
                if half is not None and half_expected is not None:
                    assert (half.dtype, half.shape, half.stride()) == (
                        half_expected.dtype, half_expected.shape, half_expected.stride()
                    )  # fmt: skip
                    assert read._bits_equal(half, half_expected)


@FEW
@given(ranks=RANKS, as_on_gpu=st.booleans())
def test_the_second_adapter_of_a_layout_equals_what_vllms_loader_makes_of_it(
    tmp_path: Path, ranks: dict[str, int], as_on_gpu: bool
) -> None:
    ours, theirs = Loader(), Loader()
    paths = [stored(tmp_path / str(seed), ranks, seed) for seed in range(3)]
    for number, path in enumerate(paths, 1_000):
        found = ours.read(path, number, as_on_gpu=as_on_gpu)
        theirs.manager.__dict__.pop("roundhouse_templates", None)
        assert_alike(found, theirs.read(path, number, as_on_gpu=as_on_gpu))
    assert (ours.uses, theirs.uses) == (1, 3)


@FEW
@given(
    ranks=RANKS,
    dtype=st.sampled_from(DTYPES),
    place_dtype=st.sampled_from(DTYPES),
    alpha=st.sampled_from([8, 16, 5]),
    zeros=st.booleans(),
    as_on_gpu=st.booleans(),
)
def test_files_whose_values_the_loader_changes_are_loaded_each_time(
    tmp_path: Path, ranks: dict[str, int], dtype: torch.dtype, place_dtype: torch.dtype, alpha: int, zeros: bool,
    as_on_gpu: bool,
) -> None:  # fmt: skip
    """By a cast or a scale. Also if the first file has only zeros, which neither changes."""
    ours = Loader(place_dtype)
    scaled = {"lora_alpha": alpha, "rank_pattern": dict.fromkeys(ranks, 8), "alpha_pattern": {}}
    ranks = dict.fromkeys(ranks, 8)
    for seed in range(2):
        path = stored(tmp_path / str(seed), ranks, seed, dtype, **scaled)
        if zeros and seed == 0:
            count = (path / FILES[1]).stat().st_size
            head = int.from_bytes((path / FILES[1]).read_bytes()[:8], "little") + 8
            (path / FILES[1]).write_bytes((path / FILES[1]).read_bytes()[:head] + bytes(count - head))
            os.utime(path / FILES[1], ns=(MARK, MARK))
        theirs = Loader(place_dtype)
        assert_alike(ours.read(path, 1, as_on_gpu=as_on_gpu), theirs.read(path, 1, as_on_gpu=as_on_gpu))
    assert ours.uses == (1 if dtype is place_dtype and alpha == 8 else 2)


ALL = dict.fromkeys(fixtures.names(), 8)


def test_only_adapters_with_the_stores_mark_are_read_by_a_template(tmp_path: Path) -> None:
    ours = Loader()
    ours.read(stored(tmp_path / "first", ALL, 0))
    changed = stored(tmp_path / "second", ALL, 1)
    os.utime(changed / FILES[1])
    ours.read(changed)
    assert ours.uses == 2
    other = stored(tmp_path / "third", ALL, 2, lora_dropout=0.1)
    ours.read(other)
    assert ours.uses == 3, "another configuration"
    ours.read(stored(tmp_path / "fourth", ALL, 3))
    assert ours.uses == 3


def test_values_that_are_not_finite_are_refused_unless_the_store_has_checked_them(tmp_path: Path) -> None:
    ours = Loader()
    ours.read(stored(tmp_path / "first", ALL, 0))
    path = stored(tmp_path / "second", ALL, 1)
    data = bytearray((path / FILES[1]).read_bytes())
    data[-2:] = b"\xc0\x7f"  # NaN in bfloat16
    (path / FILES[1]).write_bytes(data)
    with pytest.raises(ValueError, match="not finite"):
        ours.read(path)


def test_a_file_that_is_cut_short_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Loader()
    ours.read(stored(tmp_path / "first", ALL, 0))
    path = stored(tmp_path / "second", ALL, 1)
    os.truncate(path / FILES[1], (path / FILES[1]).stat().st_size - 100)
    os.utime(path / FILES[1], ns=(MARK, MARK))
    with pytest.raises(ValueError, match="truncated or has extra bytes"):
        ours.read(path)
    path = stored(tmp_path / "third", ALL, 2)
    layout = read._layout(path)
    monkeypatch.setattr(read, "_layout", lambda folder: layout)
    os.truncate(path / FILES[1], (path / FILES[1]).stat().st_size - 100)
    os.utime(path / FILES[1], ns=(MARK, MARK))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors: it became shorter"):
        ours.read(path)
    assert len(os.listdir("/proc/self/fd")) <= before


@FEW
@given(layouts=st.lists(st.tuples(RANKS, st.integers(1, 3)), min_size=1, max_size=4))
def test_places_hold_the_same_whether_an_adapter_was_read_by_a_template_or_not(
    tmp_path: Path, layouts: list[tuple[dict[str, int], int]]
) -> None:
    """Several adapters of each layout take turns in two places, in one copy each, as on a GPU."""
    ours, theirs = Loader(), Loader()
    copier = gpu_copy.GpuCopier(ours.manager._adapter_manager)
    number = 0
    for ranks, count in layouts:
        for _ in range(count):
            number += 1
            path = stored(tmp_path / "adapter", ranks, number)
            sources = copier.sources_of(ours.read(path, number, as_on_gpu=True))
            assert sources is not None
            copier.write(sources, number % 2)
            stage.write_place(theirs.manager._adapter_manager, Loader().read(path, number), number % 2)
            for name, module in ours.manager._adapter_manager.modules.items():
                other = theirs.manager._adapter_manager.modules[name]
                halves = zip(
                    (*module.lora_a_stacked, *module.lora_b_stacked),
                    (*other.lora_a_stacked, *other.lora_b_stacked),
                    strict=True,
                )
                assert all(read._bits_equal(*pair) for pair in halves)


def test_a_template_keeps_no_adapters_memory(tmp_path: Path) -> None:
    ours = Loader()
    copier = gpu_copy.GpuCopier(ours.manager._adapter_manager)
    lora = ours.read(stored(tmp_path / "first", ALL, 0), as_on_gpu=True)
    copier.sources_of(lora)
    (template,) = ours.manager.roundhouse_templates.values()
    assert template.sources.data.numel() == 0
    for empty, _, _ in template.layers.values():
        assert empty.lora_a is empty.lora_b is None


def test_the_number_of_templates_is_bounded_and_the_oldest_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "MOST", 2)
    ours = Loader()
    layouts = [dict.fromkeys(fixtures.names(), rank) for rank in (4, 5, 8)]
    for number, ranks in enumerate(layouts):
        ours.read(stored(tmp_path / str(number), ranks, number))
    assert (ours.uses, len(ours.manager.roundhouse_templates)) == (3, 2)
    for ranks in layouts[1:]:
        ours.read(stored(tmp_path / "again", ranks, 4))
    assert ours.uses == 3
    ours.read(stored(tmp_path / "again", layouts[0], 5))
    assert ours.uses == 4
