"""Pay first-time costs during the load, with a small request for each lazily initialised part of vLLM.

Measured on 2 cores without it: first sampled request 0.3-0.8 s, first JSON schema 0.2 s, first streamed answer 0.2 s.
"""

import asyncio
import json
import logging
import random
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models.chat.adapters import EngineAdapters
from models.chat.asgi import AsgiApp, whole_answer
from models.chat.vllm.steps import budget
from models.messages import AdapterRef
from registry.errors import Conflict

log = logging.getLogger("roundhouse.chat")

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "temperature": 0}),
    (
        "/v1/completions",
        {
            "prompt": "Hello",
            "max_tokens": 2,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "min_p": 0.01,
            "seed": 1,
            "n": 2,
            "logprobs": 1,
            "stop": ["\n"],
            "logit_bias": {"1": 1},
            "presence_penalty": 0.1,
            "repetition_penalty": 1.1,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 2,
            "stream": True,
            "response_format": {"type": "json_schema", "json_schema": {"name": "warm", "schema": _SCHEMA}},
        },
    ),
)
GPU_REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "logprobs": count}) for count in (0, 2, 5, 10, 15, 20)),
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 1, "prompt_logprobs": 1}),
)
"""Warm-up requests on a GPU. Triton compiles a kernel each for logprobs of 1, 2, 4, 8, 16 and 32 tokens, a special one
for exactly 16, and one for those of prompts. They come last, because prompt logprobs shorten the steps for a second."""
_LENGTHS, _BEYOND = (5, 16, 131, 132), (13, 14)
"""Tokens of prompts with an adapter, and tokens beyond the largest batch with a graph.

Triton compiles vLLM's LoRA kernels separately for batches below 128 tokens and from 128 on, and for multiples of 16,
other even sizes and odd sizes. vLLM's own warm-up covers multiples of 16, and batches with a graph are padded to its
size. Without these prompts the first longer prompt would compile, which stops all streams for a second.
"""
_TOKENS = range(1, 256)
"""Tokens of these prompts, at random: with equal ones the prefix cache would have most of the next prompt, and all
would go to the same experts of a model that has experts."""
WITHIN = 300.0
"""Seconds for all of them; on a GPU something may still be compiled. A model that does not support one (no chat
template) answers it with an error, which is fine."""


async def warmup(app: AsgiApp, model: str, requests: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Send all requests concurrently. Raises TimeoutError."""
    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*(whole_answer(app, path, {"model": model, **body}) for path, body in requests))


async def warm_up_logprobs(app: AsgiApp, model: str) -> None:
    """Send `GPU_REQUESTS` one after another. Raises TimeoutError.

    Requests in the same step all use the kernel for the one with the most logprobs, so the others would not compile.
    """
    async with asyncio.timeout(WITHIN):
        for path, body in GPU_REQUESTS:
            await whole_answer(app, path, {"model": model, **body})


def prompt_lengths(config: Any, tuned_sizes: Iterable[int] = ()) -> list[int]:
    """Return the prompt lengths for `warm_up_adapters`, each of which is one step. `config`: vLLM's.

    tuned_sizes: batch sizes with their own kernel configuration, each of which must compile.
    """
    longest = min(config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len - 2)
    captured = max(config.compilation_config.cudagraph_capture_sizes or [0])
    edges = {captured, *(size for size in tuned_sizes if size > captured)}
    return sorted(
        {min(length, longest) for length in (*_LENGTHS, *(edge + more for edge in edges for more in _BEYOND))}
    )


def crowd_lengths(config: Any) -> list[int]:
    """Return the lengths of prompts that together exceed the largest graph, if no single one can.

    vLLM may begin with the first prompt alone, so the others suffice for that. Empty if the context has room for a
    prompt that does, or if a step has no room for the others. `config`: vLLM's.
    """
    most, context = config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len - 2
    beyond = max(config.compilation_config.cudagraph_capture_sizes or [0]) + _BEYOND[0]
    if context >= beyond:
        return []
    least = -(-beyond // context)
    fitting = (
        [length] * (count + 1)
        for count, length in product((least, least + 1), range(context, 0, -1))
        if beyond <= count * length < most and count * length % 16 not in (0, 15)
    )  # no multiple of 16, with the first one's next token or without it
    return next(fitting, [])


async def warm_up_adapters(
    app: AsgiApp,
    adapters: EngineAdapters,
    lengths: Sequence[int],
    swap_tokens: int | None,
    crowd: Sequence[int] = (),
) -> None:
    """Load an adapter without effect, and answer a prompt of each length with it, one after another.

    swap_tokens: maximum tokens of a step shortly after a placement; None for no bound. No prompt may be split into two
    steps. crowd: lengths of prompts to answer at once afterwards. Raises TimeoutError. Models that do not support it
    are skipped.
    """
    try:
        layer = await adapters.a_layer()
        with tempfile.TemporaryDirectory(prefix="roundhouse-warm-") as folder:
            blank = _write_blank(Path(folder), *layer)
            try:
                async with asyncio.timeout(WITHIN):
                    await adapters.stage(blank)
                    await adapters.place(blank, None)
                    if swap_tokens is not None and swap_tokens < max(*lengths, sum(crowd)):
                        await asyncio.sleep(budget.LINGER + 0.1)
                    for batch in (*([length] for length in lengths), *([crowd] if crowd else [])):
                        prompts = [random.Random(f"{batch} {at}").choices(_TOKENS, k=k) for at, k in enumerate(batch)]
                        body = {"model": blank.digest, "prompt": prompts, "max_tokens": 2, "temperature": 0}
                        await whole_answer(app, "/v1/completions", body)
            finally:
                await _drop(adapters, blank.digest)
    except TimeoutError:
        raise
    except Exception as error:  # other names of layers in files, or another kind
        log.info("skipped the warm-up with an adapter: %s", error)


async def _drop(adapters: EngineAdapters, digest: str) -> None:
    """Drop an adapter as soon as the engine has finished the last request for it."""
    for _ in range(100):
        with suppress(Conflict):
            return await adapters.drop(digest)
        await asyncio.sleep(0.05)


def _write_blank(folder: Path, name: str, inputs: int, outputs: int) -> AdapterRef:
    prefix = f"base_model.model.{name}"
    halves = {"lora_A": np.zeros((1, inputs), np.float32), "lora_B": np.zeros((outputs, 1), np.float32)}
    tensors = {f"{prefix}.{half}.weight": zeros for half, zeros in halves.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [name.rpartition(".")[2]]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return AdapterRef(digest=f"sha256:{0:064x}", path=str(folder), rank=1, bytes=4 * (inputs + outputs))
