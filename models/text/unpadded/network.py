"""Run a transformers network without padding, if its answers stay the same.

The library's network computes everything but attention, which is replaced (`models.text.unpadded.attention`). So any
network works that uses transformers' attention interface and passes on where inputs end. This is checked when the model
is loaded: its answers to known inputs in one step are compared with the library's answers to each of them.
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
from models.text.unpadded.packing import IDS, OWNERS, POSITIONS, TYPES, Packing, pack
from registry.recipes.definition import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from models.text.tokens import Ids

_log = logging.getLogger("roundhouse.text")


class UnpaddedNetwork:
    """A network whose attention is `attention.attend`.

    Args:
        network: a transformers model without a head.
        device: where it is.
        wants_types: whether it reads token types.
    """

    def __init__(self, network: Any, device: str, wants_types: bool) -> None:
        self.device = device
        self._network, self._wants_types = network, wants_types
        self._first_position = first_position(network)
        self.captured: CapturedSteps | None = None
        """Steps as graphs; None if every step launches its kernels."""

    def capture(self, buckets: Sequence[Bucket], new_capture: Callable[[], Capture]) -> None:
        """Run steps of these shapes as graphs, once each has been used a few times."""
        policy = CapturePolicy(buckets, expected_bytes(self._network))
        self.captured = CapturedSteps(self._compute, policy, new_capture, self.device)

    @property
    def bytes_left(self) -> int:
        """Bytes that graphs may still use."""
        return self.captured.policy.bytes_left if self.captured is not None else 0

    def clear(self) -> None:
        """Drop the graphs, before the weights that they read are moved."""
        if self.captured is not None:
            self.captured.clear()

    def pack(self, inputs: "Sequence[Ids]") -> Packing:
        """Pack a step's inputs in host memory. Thread-safe."""
        bucket = None
        if self.captured is not None:
            bucket = self.captured.policy.bucket([len(given.ids) for given in inputs])
        packing = pack(inputs, self._first_position, bucket)
        return packing.pin() if self.device.startswith("cuda") else packing

    def states(self, packing: Packing) -> "tuple[Tensor, Packing]":
        """Return last states, tokens x width, and the packing on the device, both without padding."""
        if self.captured is not None and (replayed := self.captured.run(packing)) is not None:
            return replayed
        moved = packing.to(self.device).without_padding()
        return self._compute(moved, max(packing.lengths)), moved

    def features(self, packing: Packing) -> dict[str, Any]:
        """Return states and where inputs begin and end, under the names of sentence-transformers' Pooling."""
        states, moved = self.states(packing)
        owners = moved.rows[OWNERS, None]
        return {"token_embeddings": states[None], "cu_seq_lens_q": moved.boundaries, "seq_idx": owners}

    def _compute(self, packing: Packing, longest: int) -> "Tensor":
        features: dict[str, Any] = {"input_ids": packing.rows[IDS, None], "position_ids": packing.rows[POSITIONS, None]}
        if self._wants_types:
            features["token_type_ids"] = packing.rows[TYPES, None]
        ends = {"cu_seq_lens_q": packing.boundaries, "cu_seq_lens_k": packing.boundaries}
        result = self._network(**features, **ends, max_length_q=longest, max_length_k=longest, use_cache=False)
        states: Tensor = result.last_hidden_state[0]
        return states


def use_graphs(unpadded: UnpaddedNetwork | None, recipe: Recipe, limits: BatchLimits, context: int) -> None:
    """Capture steps, if the recipe says so and the network runs unpadded. context: most tokens of an input."""
    if unpadded is not None and recipe.engine.flags.get("cuda_graphs"):
        buckets = buckets_of(limits.tokens, limits.items, context)
        unpadded.capture(buckets, partial(CudaCapture, unpadded.device))


def without_padding(
    network: Any, device: str, wants_types: bool, is_right: Callable[[UnpaddedNetwork], bool]
) -> UnpaddedNetwork | None:
    """Replace a network's attention, if `is_right` finds that its answers stay the same.

    Otherwise, or if it cannot run so, returns None, restores the network, and logs why. network: with its head, if any.
    """
    before = network.config._attn_implementation
    attention.register()
    network.set_attn_implementation(attention.NAME)
    why = f"{type(network).__name__} has its own attention"
    if network.config._attn_implementation == attention.NAME:
        unpadded = UnpaddedNetwork(network.base_model, device, wants_types)
        try:
            if is_right(unpadded):
                return unpadded
            why = "its answers differ without padding"
        except Exception as error:  # an unsuitable network may fail in any way
            why = f"{type(error).__name__}: {error}"
        network.set_attn_implementation(before)
    _log.warning("this model runs with padding despite `unpadded`: %s", why)
    return None
