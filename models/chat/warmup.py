"""First-time costs, paid during the load: one small request for each part of vLLM that sets itself up when first used.

Measured on 2 cores without it: first sampled request 0.3-0.8 s, first JSON schema 0.2 s, first streamed answer 0.2 s.
"""

import asyncio
import json
import logging
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models.chat.adapters import EngineAdapters
from models.chat.asgi import AsgiApp, whole_answer
from models.messages import AdapterRef
from registry.errors import Conflict

log = logging.getLogger("roundhouse.chat")

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
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
_LENGTHS = (5, 16, 131, 1037)
"""Tokens of prompts with an adapter. Triton compiles vLLM's LoRA kernels for batches of one token, under 128 and from
128 on, and for those that 16 divides apart from others; vLLM's own warm-up meets few of these. A first prompt of 8,000
tokens with an adapter took 1.2 s on an H100, and all streams stood still meanwhile."""
WITHIN = 300.0
"""Seconds for all of them; on a GPU something may be compiled still. A model that cannot do one (no chat template)
answers that with an error, which is fine."""


async def warmup(app: AsgiApp, model: str) -> None:
    """Send the requests, all at once. Raises TimeoutError."""
    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*(whole_answer(app, path, {"model": model, **body}) for path, body in _REQUESTS))


async def warm_up_adapters(app: AsgiApp, adapters: EngineAdapters, context: int) -> None:
    """Load an adapter that changes nothing, and answer prompts of some lengths with it.

    Raises TimeoutError; a model for which that cannot be done goes without.
    """
    try:
        layer = await adapters.a_layer()
        with tempfile.TemporaryDirectory(prefix="roundhouse-warm-") as folder:
            blank = _write_blank(Path(folder), *layer)
            try:
                async with asyncio.timeout(WITHIN):
                    await adapters.stage(blank)
                    await adapters.place(blank, None)
                    for length in sorted({min(length, context - 2) for length in _LENGTHS}):
                        body = {"model": blank.digest, "prompt": [1] * length, "max_tokens": 2, "temperature": 0}
                        await whole_answer(app, "/v1/completions", body)
            finally:
                await _drop(adapters, blank.digest)
    except TimeoutError:
        raise
    except Exception as error:  # layers of other names in files, or of another kind
        log.info("no warm-up with an adapter: %s", error)


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
