"""Send an image or sound to EngineCore with each request that has it.

vLLM sends only the hash of one that an earlier request had, and takes for granted that EngineCore has received that
request. But it may have been refused after its images were processed, its client may have left, or it may still wait
for its adapter. The later request would fail, also that of another client.
"""

from __future__ import annotations

from typing import Any


def patch(factories: Any) -> None:
    """Cache processed media in the slot instead of EngineCore. factories: vllm.multimodal.cache.factories."""
    stock = factories._get_cache_type

    def cache_type(vllm_config: Any) -> str | None:
        kind: str | None = stock(vllm_config)
        return "processor_only" if kind == "lru" else kind

    factories._get_cache_type = cache_type
