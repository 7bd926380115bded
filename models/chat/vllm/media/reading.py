"""Read images in formats that tell their size, and cache media under keys of their content and team.

The slot keeps the processed media, not EngineCore: see `sending`.
"""

from __future__ import annotations

from typing import Any

from models.chat.grammars.admission import refusal
from models.chat.requests.media import BUDGET
from models.chat.vllm.media.decoding import pass_context
from registry.errors import BadRequest

NESTED = ("BLP", "ICNS", "ICO", "IPTC")
"""Formats that are not read: a small image may contain one of any size, or is decoded as soon as it is opened."""


def patch(factories: Any, image: Any, renderer: Any) -> None:
    """Cache processed media in the slot, under our own keys, and open no images in formats of `NESTED`.

    factories, image: the modules of vllm.multimodal. renderer: vLLM's class that processes media.
    """
    stock_type, stock_process = factories._get_cache_type, renderer._process_tokens_async
    stock_init = renderer.__init__

    def cache_type(vllm_config: Any) -> str | None:
        kind: str | None = stock_type(vllm_config)
        return "processor_only" if kind == "lru" else kind

    async def process_tokens_async(self: Any, prompt: dict[str, Any], **options: Any) -> Any:
        if not prompt.get("multi_modal_data"):
            return await stock_process(self, prompt, **options)
        processed = await stock_process(self, keyed(prompt), **options)
        if (budget := BUDGET.get()) is not None:
            try:
                budget.require(0)  # a preprocessor that reads a video's sound goes on without it
            except BadRequest as error:
                raise refusal(error) from None
        return processed

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        stock_init(self, *arguments, **named)
        pass_context(self._mm_executor)

    factories._get_cache_type = cache_type
    image.ALLOWED_IMAGE_FORMATS = tuple(form for form in image.ALLOWED_IMAGE_FORMATS if form not in NESTED)
    renderer._process_tokens_async, renderer.__init__ = process_tokens_async, init


def keyed(prompt: dict[str, Any]) -> dict[str, Any]:
    """Return a prompt whose media are cached by content and salt, as its text is.

    vLLM takes a part's `uuid` for the key, from any client: one could be answered about another's image, or put its own
    in the place of the other's. Without the salt, the time of an answer would tell whether another team has sent an
    image. These settings were applied before; here they only enter the key.

    Raises ValueError for a part without data, which vLLM would look up by its name.
    """
    for kind, items in prompt["multi_modal_data"].items():
        if isinstance(items, list) and any(item is None for item in items):
            raise ValueError(f"A part of this request has no {kind}: send it as a data: URL, not by an id or name.")
    settings, salt = dict(prompt.get("media_io_kwargs") or {}), prompt.get("cache_salt")
    if salt:
        settings |= {kind: {**settings.get(kind, {}), "cache_salt": salt} for kind in prompt["multi_modal_data"]}
    unnamed = {kind: [None] * len(names) for kind, names in (prompt.get("multi_modal_uuids") or {}).items()}
    return {**prompt, "media_io_kwargs": settings, "multi_modal_uuids": unnamed}
