"""Send an image or sound to EngineCore with each request that has it, and read the same formats as the bounds do.

vLLM sends only the hash of one that an earlier request had, and takes for granted that EngineCore has received that
request. But it may have been refused after its images were processed, its client may have left, or it may still wait
for its adapter. The later request would fail, also that of another client.
"""

from __future__ import annotations

from typing import Any

from models.chat.requests.media import FORMATS


def patch(factories: Any, image: Any) -> None:
    """Cache processed media in the slot instead of EngineCore, and open images in `FORMATS` only.

    factories, image: the modules of vllm.multimodal.
    """
    stock = factories._get_cache_type

    def cache_type(vllm_config: Any) -> str | None:
        kind: str | None = stock(vllm_config)
        return "processor_only" if kind == "lru" else kind

    factories._get_cache_type = cache_type
    image.ALLOWED_IMAGE_FORMATS = FORMATS
