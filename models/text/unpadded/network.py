"""A transformers network that runs on inputs without padding, if it gives what it gives with the library's attention.

The library's network stays what computes; only its attention is another function (`models.text.unpadded.attention`).
So any network serves that leaves attention to transformers and passes on where inputs end. Whether it does shows when
the model is loaded: its answers to known inputs, all in one step, are compared with the library's own, one by one.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from models.batching.worker import BatchLimits
from models.text.loading import first_position
from models.text.unpadded import attention
from models.text.unpadded.buckets import Bucket, CapturePolicy, buckets_of
from models.text.unpadded.graphs import Capture, CapturedSteps, CudaCapture, expected_bytes
from models.text.unpadded.packing import IDS, POSITIONS, TYPES, Packing, pack
from registry.recipes.definition import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from models.text.tokens import Ids

_log = logging.getLogger("roundhouse.text")


class UnpaddedNetwork:
    """A network whose attention is `attention.attend`.

    Args:
        network: a transformers model without a head.
        device: where it lives.
        wants_types: it reads token types.
    """

    def __init__(self, network: Any, device: str, wants_types: bool) -> None:
        self.device = device
        self._network, self._wants_types = network, wants_types
        self._first_position = first_position(network)
        self.captured: CapturedSteps | None = None
        """Steps as graphs; None: each step launches its kernels."""

    def capture(self, buckets: Sequence[Bucket], new_capture: Callable[[], Capture]) -> None:
        """Run steps of these shapes as graphs from now on, each once it came up a few times."""
        policy = CapturePolicy(buckets, expected_bytes(self._network))
        self.captured = CapturedSteps(self._compute, policy, new_capture, self.device)

    @property
    def bytes_left(self) -> int:
        """Bytes that graphs may still take."""
        return self.captured.policy.bytes_left if self.captured is not None else 0

    def clear(self) -> None:
        """Drop the graphs: the weights that they read are about to move."""
        if self.captured is not None:
            self.captured.clear()

    def pack(self, inputs: "Sequence[Ids]") -> Packing:
        """A step's inputs in host memory. Any thread may call."""
        bucket = None
        if self.captured is not None:
            bucket = self.captured.policy.bucket([len(given.ids) for given in inputs])
        packing = pack(inputs, self._first_position, bucket)
        return packing.pin() if self.device.startswith("cuda") else packing

    def states(self, packing: Packing) -> "tuple[Tensor, Packing]":
        """Last states, tokens x width, and the packing on the device, both without padding."""
        if self.captured is not None and (replayed := self.captured.run(packing)) is not None:
            return replayed
        moved = packing.to(self.device).without_padding()
        return self._compute(moved, max(packing.lengths)), moved

    def _compute(self, packing: Packing, longest: int) -> "Tensor":
        features: dict[str, Any] = {"input_ids": packing.rows[IDS, None], "position_ids": packing.rows[POSITIONS, None]}
        if self._wants_types:
            features["token_type_ids"] = packing.rows[TYPES, None]
        ends = {"cu_seq_lens_q": packing.boundaries, "cu_seq_lens_k": packing.boundaries}
        result = self._network(**features, **ends, max_length_q=longest, max_length_k=longest, use_cache=False)
        states: Tensor = result.last_hidden_state[0]
        return states


def use_graphs(unpadded: UnpaddedNetwork | None, recipe: Recipe, limits: BatchLimits, context: int) -> None:
    """Capture steps, if the recipe says so and the network runs without padding. context: tokens of an input."""
    if unpadded is not None and recipe.engine.flags.get("cuda_graphs"):
        buckets = buckets_of(limits.tokens, limits.items, context)
        unpadded.capture(buckets, partial(CudaCapture, unpadded.device))


def without_padding(
    network: Any, device: str, wants_types: bool, is_right: Callable[[UnpaddedNetwork], bool]
) -> UnpaddedNetwork | None:
    """Replace a network's attention, if `is_right` finds that its answers stay the same.

    None: they do not, or it cannot run so; the network is then as it was, and the log says why. network: with its
    head, if it has one.
    """
    before = network.config._attn_implementation
    attention.register()
    network.set_attn_implementation(attention.NAME)
    why = f"{type(network).__name__} has an attention of its own"
    if network.config._attn_implementation == attention.NAME:
        unpadded = UnpaddedNetwork(network.base_model, device, wants_types)
        try:
            if is_right(unpadded):
                return unpadded
            why = "its answers differ without"
        except Exception as error:  # the border: a network that cannot run so may fail in any way
            why = f"{type(error).__name__}: {error}"
        network.set_attn_implementation(before)
    _log.warning("this model runs with padding, whatever `unpadded` says: %s", why)
    return None
