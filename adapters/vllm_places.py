"""The places of a CPU's LoRA layers: what each holds is set between two steps, without a copy or with a small one.

| adapter                                | its weights                                                             |
|----------------------------------------|-------------------------------------------------------------------------|
| small, of a known form (`vllm_forms`)  | copied to the place in one call                                         |
| small, else                            | copied to the place, tensor by tensor                                   |
| other                                  | stay where they were staged; the place refers to them                   |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cachetools import LRUCache

from adapters import cpu_kernel, vllm_punica
from adapters.vllm_forms import MOST, SMALL, Form, tensors


def refers(manager: Any) -> bool:
    """Whether places may refer to weights outside of their own memory: all layers are whole, linear, and on a CPU."""
    if manager.device.type != "cpu" or manager.lora_config.fully_sharded_loras:
        return False
    return all(module.tp_size == 1 and vllm_punica.linear(module) for module in manager.modules.values())


class Places:
    """Of all layers of a LoRA manager that `refers`. Changed between two steps only, by the thread that runs them."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self._modules, self._kernel = modules, cpu_kernel.load()
        self._layers: list[cpu_kernel.Layer] = []
        self._fits = False
        self._copies: LRUCache[Form, _Copies] = LRUCache(MOST)

    def _current(self) -> list[cpu_kernel.Layer]:
        """In the modules' order. LoRA layers keep their tensors; should one not, all that was known is forgotten."""
        held = zip(self._layers, self._modules.values(), strict=bool(self._layers))
        if not self._layers or any(
            layer.stacked[0] is not module.lora_a_stacked or layer.stacked[1] is not module.lora_b_stacked
            for layer, module in held
        ):
            self._layers = [vllm_punica.layer_of(module) for module in self._modules.values()]
            self._fits = all(layer.fits and layer.dtype is torch.bfloat16 for layer in self._layers)
            self._copies.clear()
        return self._layers

    def put(self, place: int, lora: Any, size: int) -> None:
        """From the next step on, a place holds an adapter of `size` bytes, which `read_adapter` gave. What no layer
        asks for stays as it is: nothing is zeroed.

        Raises ValueError when its tensors are not what a layer takes.
        """
        layers, form = self._current(), getattr(lora, "roundhouse_form", None)
        if form is not None and size < SMALL and self._fits:
            self._fill(place, layers, form, lora.roundhouse_taken)
            return
        for name, layer in zip(self._modules, layers, strict=True):
            pairs = _pairs(lora.loras.get(name), len(layer.slices))
            if size < SMALL:
                pairs = [pair and _copied(pair, layer, place, number) for number, pair in enumerate(pairs)]
            layer.put(place, pairs)

    def _fill(self, place: int, layers: list[cpu_kernel.Layer], form: Form, taken: torch.Tensor) -> None:
        assert self._kernel is not None, "what has a form was read by it"
        copies = self._copies.get(form)
        if copies is None:
            copies = self._copies[form] = _Copies(self._modules, layers, form)
        cpu_kernel.copy_all(self._kernel, copies.table(place, taken.data_ptr()))
        for layer, ranks in zip(layers, copies.ranks, strict=True):
            layer.fill(place, ranks)

    def clear(self, place: int) -> None:
        """Nothing holds on to what `put` was given; the place's weights are those in its own memory."""
        for layer in self._current():
            layer.clear(place)


class _Copies:
    """From where an adapter of a form is copied to where. Raises ValueError when that is not what a layer takes."""

    def __init__(self, modules: dict[str, Any], layers: list[cpu_kernel.Layer], form: Form) -> None:
        self.ranks: list[tuple[int, ...]] = []
        """Of each layer's slices; 0: the adapter leaves it alone."""
        rows: list[tuple[int, int, int]] = []
        strides: list[int] = []
        for name, layer in zip(modules, layers, strict=True):
            pairs = form.halves.get(name, [(None, None)] * len(layer.slices))
            ranks = []
            for number, ((a, b), width) in enumerate(zip(pairs, layer.slices, strict=True)):
                ranks.append(a.shape[0] if a else 0)
                if a is None or b is None:
                    continue
                if not layer.shaped(a.shape, b.shape, width):
                    raise ValueError(f"{name}: {a.shape}, {b.shape} are no weights for this layer")
                for view, (own, stride) in zip((a, b), layer.own(number), strict=True):
                    rows.append((2 * view.start, own, 2 * view.shape.numel()))
                    strides.append(stride)
            self.ranks.append(tuple(ranks))
        self._table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        self._strides = np.array(strides, dtype=np.int64)

    def table(self, place: int, start: int) -> npt.NDArray[np.int64]:
        """As `cpu_kernel.copy_all` takes it, of an adapter whose staged memory begins at address `start`."""
        table = self._table.copy()
        table[:, 0] += start
        table[:, 1] += place * self._strides
        return table


def _pairs(weights: Any, count: int) -> list[cpu_kernel.Pair | None]:
    if weights is None:
        return [None] * count
    return [(a, b) if a is not None and b is not None else None for a, b in tensors(weights)]


def _copied(pair: cpu_kernel.Pair, layer: cpu_kernel.Layer, place: int, number: int) -> cpu_kernel.Pair:
    rank, (stacked_a, stacked_b) = len(pair[0]), (halves[number] for halves in layer.stacked)
    return stacked_a[place, 0, :rank].copy_(pair[0]), stacked_b[place, 0, :, :rank].copy_(pair[1])
