"""Run steps of a few shapes as captured graphs, which replay without launching each kernel.

A graph uses fixed memory: a step's tensors are copied there, and its states are read before the next step. Only
`CudaCapture` needs a GPU; tests use a function instead.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from models.text.unpadded.buckets import Bucket, CapturePolicy
from models.text.unpadded.packing import Packing

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger("roundhouse.text")
LEAST_ALIKE = 0.998
"""Least cosine of each state in a graph's first replay to the state without a graph, in 16 bits."""
WARM_UPS = 2
"""Calls before a capture, in which libraries allocate and load kernels, as a capture cannot."""

Replay = Callable[[], "Tensor"]
Capture = Callable[[Callable[[], "Tensor"]], tuple[Replay, int]]
"""Captures a function on fixed memory. Returns a replay, and the bytes that it takes."""


class _Step(NamedTuple):
    memory: Packing
    """Inputs on the device, in the bucket's shape."""
    replay: Replay


class CapturedSteps:
    """Graphs by bucket. One thread runs them.

    Args:
        compute: returns the last states of a packing on the device; takes a bound on its longest input.
        policy: decides which bucket gets a graph.
        new_capture: returns a `Capture` whose graphs share memory.
        device: where they run.
    """

    def __init__(
        self,
        compute: "Callable[[Packing, int], Tensor]",
        policy: CapturePolicy,
        new_capture: Callable[[], Capture],
        device: str,
    ) -> None:
        self._compute, self.policy, self._device = compute, policy, device
        self._new_capture, self._capture = new_capture, new_capture()
        self._steps: dict[Bucket, _Step] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, packing: Packing) -> "tuple[Tensor, Packing] | None":
        """Compute `UnpaddedNetwork.states` by a graph, or return None if there is none. packing: in host memory."""
        bucket = packing.bucket
        if bucket is None:
            return None
        step = self._steps.get(bucket)
        if step is None and self.policy.wants(bucket):
            step = self._add(bucket, packing)
        if step is None:
            return None
        step.memory.rows.copy_(packing.rows, non_blocking=True)
        step.memory.boundaries.copy_(packing.boundaries, non_blocking=True)
        states = step.replay()[: sum(packing.lengths)]
        return states, step.memory._replace(lengths=packing.lengths).without_padding()

    def clear(self) -> None:
        """Drop all graphs."""
        self._steps.clear()
        self.policy.clear()
        self._capture = self._new_capture()  # torch may not reuse a memory pool without graphs

    def _add(self, bucket: Bucket, packing: Packing) -> _Step | None:
        import torch

        memory = packing.to(self._device)
        memory = memory._replace(rows=memory.rows.clone(), boundaries=memory.boundaries.clone())
        exact = packing.without_padding().to(self._device)
        try:
            expected = self._compute(exact, max(packing.lengths))
            replay, size = self._capture(lambda: self._compute(memory, bucket.longest))
            states = replay()[: len(expected)]
            alike = torch.nn.functional.cosine_similarity(states.float(), expected.float(), dim=1)
            if not float(alike.min()) >= LEAST_ALIKE:
                raise RuntimeError("its states differ")
        except Exception as error:  # such as an operation that cannot be captured, or no memory
            _log.warning("steps of %d tokens get no graph: %s", bucket.tokens, error)
            self.policy.fail(bucket)
            return None
        self.policy.add(bucket, size)
        step = self._steps[bucket] = _Step(memory, replay)
        return step


class CudaCapture:
    """Captures functions as CUDA graphs that share a memory pool, so only one may run at a time."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, function: "Callable[[], Tensor]") -> "tuple[Replay, int]":
        import torch

        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        # other threads may pin memory during the capture, which the default mode forbids
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            output = function()

        def replay() -> "Tensor":
            graph.replay()
            return output

        return replay, max(0, torch.cuda.memory_reserved(self._device) - before)


def expected_bytes(network: Any) -> Callable[[Bucket], int]:
    """Return an estimate of a bucket's graph in bytes: a step's live tensors, and copies in between."""
    config = network.config
    hidden = int(config.hidden_size)
    feed_forward = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    each = next(iter(network.parameters())).element_size()
    return lambda bucket: bucket.tokens * (12 * hidden + 2 * feed_forward) * each
