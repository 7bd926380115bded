"""Tunes vLLM's LoRA kernels for the installed card, without a server, and writes the files that vLLM reads.

    python -m benchmarks.gpu.tune_lora [--shape 8b] [--rank 16] [--places 24] [--seconds 110] [--out FOLDER]

All candidates are compiled first, by one process per core; then each is timed in a CUDA graph. A candidate whose output
differs from that of vLLM's default is rejected. Sizes for which there is no time are reported as left out; vLLM uses
the nearest size for them. With VLLM_LORA_ENABLE_DUAL_STREAM=1 the kernels are tuned that vLLM runs in that mode. The
files are written to the package (`models/chat/vllm/tuned`) or to `--out`. The result is printed as JSON.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from functools import cache, lru_cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.gpu.shapes import SHAPES, Shape
from benchmarks.gpu.tuning import ACTIVE, FIRST, Config, Search, Signature, candidates, signatures, write
from benchmarks.report.environment import ROOT
from models import nvml
from models.chat.vllm import tuned
from registry.base.processor import cores

KINDS = ("SHRINK", "EXPAND_TRUE")
KINDS_BESIDE = ("SHRINK", "EXPAND_FALSE")
"""The kernels when adapters run on their own stream and their results are added to the base's afterwards."""
DEVICE = "cuda"
CALLS = 20
"""Calls of a kernel in one CUDA graph."""
TOLERANCE = 0.05
"""Largest allowed difference to the default's output, as a share of its largest value, since bfloat16 sums depend on
their order."""
COMPILE_SHARE = 0.6
"""Share of the time for compiling ahead. Candidates that are not compiled by then are compiled when they are timed."""


class NotTuned(RuntimeError):
    """The tuner's process ended without a result."""


def kernel_faults() -> tuple[type[Exception], ...]:
    """Return the errors of candidates that the card cannot run. Triton's are not RuntimeErrors, CUDA's are."""
    return RuntimeError, import_module("triton.errors").TritonError


class CudaTimer:
    """Times a kernel on the card: a `tuning.Time`."""

    def __init__(self, places: int) -> None:
        import torch

        self._torch, self._places, self._faults = torch, places, kernel_faults()
        self._ops: dict[str, Any] = {
            name: import_module(f"vllm.lora.ops.triton_ops.lora_{name}_op") for name in ("shrink", "expand")
        }
        self._stock = {name: module.get_lora_op_configs for name, module in self._ops.items()}
        self._weights = cache(self._make_weights)
        self._call = lru_cache(maxsize=64)(self._make)

    def __call__(self, signature: Signature, size: int, active: int, config: Config) -> float | None:
        torch = self._torch
        run, output, expected = self._call(signature, size, active)
        with self._with(signature, config):
            try:
                run()
                torch.cuda.synchronize()
                if not self._is_like(output, expected):
                    return None
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(CALLS):
                        run()
            except self._faults:  # too much shared memory, or too many registers
                return None
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / CALLS

    def card(self) -> str:
        """Return the card's name, as vLLM looks it up."""
        return str(self._torch.cuda.get_device_name())

    def compile(self, signature: Signature, configs: Sequence[Config]) -> None:
        """Run each once, which puts its code into Triton's cache for all processes."""
        for size in FIRST:
            run, _, _ = self._call(signature, size, min(ACTIVE))
            for config in configs:
                with self._with(signature, config), contextlib.suppress(*self._faults):
                    run()
        self._torch.cuda.synchronize()

    def _make(self, signature: Signature, size: int, active: int) -> tuple[Any, Any, Any]:
        """Return the call, the tensor that it writes, and that tensor's values with the default configuration."""
        torch = self._torch
        meta_of = import_module("vllm.lora.ops.triton_ops.lora_kernel_metadata").LoRAKernelMeta
        meta = meta_of.make(self._places, size, DEVICE)
        meta.prepare_tensors(torch.arange(size, device=DEVICE) % min(active, self._places))
        arguments = meta.meta_args(size, False)
        shrinks, slices, weights = signature.kind == "SHRINK", signature.slices, self._weights(signature)
        if shrinks:
            given = self._values(size, signature.inputs)
            output = torch.zeros(slices, size, signature.outputs, device=DEVICE)
        else:
            given = self._values(slices, size, signature.inputs).float()
            output = torch.zeros(size, slices * signature.outputs, dtype=torch.bfloat16, device=DEVICE)
        adds = signature.kind == "EXPAND_TRUE"

        def run() -> None:
            if shrinks:
                self._ops["shrink"]._lora_shrink(given, weights, output, *arguments, 1.0)
            else:
                self._ops["expand"]._lora_expand(given, weights, output, *arguments, 0, adds)

        def once() -> Any:
            output.zero_()
            run()
            return output.clone()

        expected = once()

        def run_anew() -> None:
            if adds:
                output.zero_()
            run()

        return run_anew, output, expected

    def _make_weights(self, signature: Signature) -> list[Any]:
        """Return weights that live as long as this timer, because vLLM caches their strides by address for good."""
        sides = (self._places, 1, signature.outputs, signature.inputs)
        return [self._values(*sides) for _ in range(signature.slices)]

    def _values(self, *sides: int) -> Any:
        return self._torch.randn(*sides, device=DEVICE).to(self._torch.bfloat16)

    def _is_like(self, output: Any, expected: Any) -> bool:
        return bool((output - expected).abs().max() <= TOLERANCE * expected.abs().max())

    @contextlib.contextmanager
    def _with(self, signature: Signature, config: Config) -> Any:
        name = "shrink" if signature.kind == "SHRINK" else "expand"
        module = self._ops[name]
        module.get_lora_op_configs = lambda *_, **__: config
        try:
            yield
        finally:
            module.get_lora_op_configs = self._stock[name]


def _compile(places: int, signature: Signature, configs: Sequence[Config]) -> None:
    CudaTimer(places).compile(signature, configs)


def compile_all(selected: Sequence[Signature], rank: int, places: int, processes: int, seconds: float) -> list[str]:
    """Compile the candidates of all signatures in several processes, as far as the time allows; returns the errors."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        work = []
        for signature in selected:
            configs = candidates(signature.kind, rank)
            parts = [configs[first::processes] for first in range(processes)]
            work += [pool.submit(_compile, places, signature, part) for part in parts if part]
        done, _ = wait(work, max(0.0, seconds))
        pool.shutdown(wait=True, cancel_futures=True)
    return [f"{type(fault).__name__}: {fault}" for one in done if (fault := one.exception()) is not None]


def kinds() -> Sequence[str]:
    """Return the kinds of kernels that vLLM runs with these environment variables."""
    return KINDS_BESIDE if import_module("vllm.envs").VLLM_LORA_ENABLE_DUAL_STREAM else KINDS


def tune(shape: Shape, rank: int, places: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Tune and write the files; returns what was written and what was left out."""
    end = time.monotonic() + seconds
    nvml.gpu("cuda:0")  # says why, if there is none
    tuned_kinds = kinds()
    selected = signatures(shape, rank, tuned_kinds)
    faults = compile_all(selected, rank, places, max(1, cores() - 1), COMPILE_SHARE * seconds)
    compiled = seconds - (end - time.monotonic())
    timer = CudaTimer(places)
    search = Search(timer, end)
    search.run(selected, rank)
    card = timer.card()
    files = [file.name for file in write(search, tuned_kinds, places, card, folder)]
    left_out = [f"{signature.kind} {signature.slices} x {size}" for signature, size in search.left_out]
    result = {"card": card, "files": files, "left_out": left_out, "compile_seconds": round(compiled, 1)}
    return result if not faults else {**result, "compile_faults": [len(faults), faults[0][-300:]]}


def tune_apart(shape: Shape, rank: int, places: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Run `tune` in a child process, whose end frees its memory on the card even after a crash. Raises NotTuned."""
    words = {"shape": shape.name, "rank": rank, "places": places, "seconds": seconds, "out": folder}
    command = [sys.executable, "-m", "benchmarks.gpu.tune_lora"]
    command += [word for key, value in words.items() for word in (f"--{key}", str(value))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise NotTuned(f"the tuner ended with {done.returncode}: {done.stderr[-1000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--places", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--out", type=Path, default=tuned.FOLDER)
    options = parser.parse_args()
    try:
        result = tune(SHAPES[options.shape], options.rank, options.places, options.seconds, options.out)
    except nvml.NoGpu as error:
        print(f"error: there is no GPU to tune for: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
