"""First-time costs, paid during the load: one small request for each part of vLLM that sets itself up when first used.

Measured on 2 cores without it: first sampled request 0.3-0.8 s, first JSON schema 0.2 s, first streamed answer 0.2 s.
"""

import asyncio
from typing import Any

from models.chat.asgi import AsgiApp, whole_answer

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
WITHIN = 300.0
"""Seconds for all of them; on a GPU something may be compiled still. A model that cannot do one (no chat template)
answers that with an error, which is fine."""


async def warm(app: AsgiApp, model: str) -> None:
    """Send the requests, all at once. Raises TimeoutError."""
    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*(whole_answer(app, path, {"model": model, **body}) for path, body in _REQUESTS))
