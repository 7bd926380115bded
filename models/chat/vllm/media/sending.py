"""Send an image or sound to EngineCore once.

vLLM sends only the hash of one that an earlier request had, and takes for granted that EngineCore has received that
request. But it may have been refused after its images were processed, its client may have left, or it may still wait
for its adapter. The later request would fail, also that of another client. To send it each time takes 0.6 ms for an
image of 0.8 megapixels (5 MB), 3 ms for 3 (19 MB), and 8 to 18 ms for 6 (36 MB).

So the slot keeps the processed media, and leaves one out of a request only if EngineCore has it for certain. Both note
the media that were used last, as many as fit in the same room. The slot does so when it hands a request to the socket,
which loses and reorders nothing; EngineCore when it receives the request, before it may refuse it. After a request that
could not be sent, the slot forgets all. What it notes from then on, EngineCore has as well: it gets the same requests.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from cachetools import LRUCache

log = logging.getLogger("roundhouse.chat")
SHARE = 4
"""EngineCore keeps media up to this part of what the slot keeps: `mm_processor_cache_gb`."""
LEAST_BYTES = 1 << 16
"""Bytes counted for an item beside its tensors, so that there are never too many items."""


def size_of(item: Any) -> int:
    """Return the bytes of an item's tensors, which are the same before and after the socket."""
    import torch

    rest, total = [field.data for field in item.values()], LEAST_BYTES
    while rest:
        value = rest.pop()
        if isinstance(value, torch.Tensor):
            total += value.nbytes
        elif isinstance(value, list | tuple):
            rest += value
    return total


def unsent(features: list[Any], known: LRUCache[str, int]) -> list[Any]:
    """Return a request's media without the data that EngineCore has, and note in `known` what it will have."""
    left = []
    for feature in features:
        key = feature.mm_hash or feature.identifier
        if known.get(key) is not None:
            left.append(dataclasses.replace(feature, data=None))
            continue
        left.append(feature)
        if (size := size_of(feature.data)) <= known.maxsize:
            known[key] = size
    return left


def complete(features: list[Any], stored: LRUCache[str, Any]) -> None:
    """Fill in the data that were left out, and note the others. Raises LookupError for unknown ones."""
    for feature in features:
        key = feature.mm_hash or feature.identifier
        if feature.data is None:
            feature.data = stored.get(key)
            if feature.data is None:
                raise LookupError(f"the data of {key} were never sent")
        elif size_of(feature.data) <= stored.maxsize:
            stored[key] = feature.data


def patch(client: Any, core: Any) -> None:
    """Send media once. client: vLLM's class that sends requests to one EngineCore. core: EngineCore."""
    from vllm.v1.engine import EngineCoreRequestType

    stock_send, stock_preprocess = client._send_input, core.preprocess_add_request

    def send_input(self: Any, kind: Any, request: Any, engine: Any = None) -> Any:
        features = request.mm_features if kind == EngineCoreRequestType.ADD else None
        if not features:
            return stock_send(self, kind, request, engine)
        request.mm_features = unsent(features, _media_of(self, int))
        sent = None
        try:
            sent = stock_send(self, kind, request, engine)
        finally:
            request.mm_features = features  # of which vLLM makes the next request, if several answers are wanted
            if sent is None or (sent.done() and sent.exception() is not None):
                del self.__dict__[_SET]
        if not sent.done():  # it may be cancelled before it is sent: never with vLLM's sockets, which are unbounded
            log.warning("media are sent with each request from now on, as the socket does not take them at once")
            self.__dict__[_SET] = LRUCache(0)
        return sent

    def preprocess_add_request(self: Any, request: Any) -> Any:
        if request.mm_features:
            complete(request.mm_features, _media_of(self, size_of))
        return stock_preprocess(self, request)

    client._send_input = send_input
    core.preprocess_add_request = preprocess_add_request


_SET = "roundhouse_media"


def _media_of(owner: Any, size_of_value: Callable[[Any], int]) -> LRUCache[str, Any]:
    """Return the media that a client or an EngineCore has noted; none at its first use. Both have the same room.

    There is no room with several EngineCores, or with a cache in shared memory, whose items must arrive each time.
    """
    media: LRUCache[str, Any] | None = owner.__dict__.get(_SET)
    if media is None:
        import vllm.multimodal.cache.factories as factories

        config, room = owner.vllm_config, 0
        # vLLM tells each of several EngineCores of a dense model that it is the only one, but not its coordinator
        has_others = config.parallel_config.data_parallel_size > 1 or getattr(owner, "has_coordinator", False)
        if factories._get_cache_type(config) == "processor_only" and not has_others:
            room = int(config.model_config.get_multimodal_config().mm_processor_cache_gb * (1 << 30)) // SHARE
        media = owner.__dict__[_SET] = LRUCache(room, size_of_value)
    return media
