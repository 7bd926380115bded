"""Nasty and odd bodies: the chat engine on the real vLLM refuses or answers them, and survives them all."""

import base64
from typing import Any

import pytest

from registry.bounds import Bounds
from registry.errors import BadRequest, NotFound, RoundhouseError
from tests.contract.chat import nasty as chat_nasty
from tests.contract.chat.nasty import CHAT
from tests.contract.chat_engine.bench import Bench
from tests.contract.vllm.test_media import png

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]


@pytest.mark.parametrize("case", chat_nasty.REFUSED)
async def test_nasty_bodies_are_refused(bench: Bench, case: str) -> None:
    path, changes = chat_nasty.REFUSED[case]
    try:
        status = (await bench.ask(path, chat_nasty.body(path, changes, "tiny"))).status
    except RoundhouseError as error:
        status = error.status
    assert 400 <= status < 500
    assert bench.unfinished() == 0


@pytest.mark.parametrize("case", chat_nasty.ANSWERED)
async def test_odd_bodies_are_answered(bench: Bench, case: str) -> None:
    path, changes = chat_nasty.ANSWERED[case]
    assert (await bench.ask(path, chat_nasty.body(path, changes, "tiny"))).status == 200


@pytest.mark.parametrize("case", chat_nasty.RAW)
async def test_bytes_that_are_no_request_are_refused(bench: Bench, case: str) -> None:
    try:
        status = (await bench.ask(CHAT, chat_nasty.RAW[case])).status
    except RoundhouseError as error:
        status = error.status
    assert 400 <= status < 500


PICTURE = "data:image/png;base64," + base64.b64encode(png(100, 50)).decode()
PART = {"type": "image_url", "image_url": {"url": PICTURE}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]}}


@pytest.mark.parametrize(
    ("path", "field", "part"),
    [
        (CHAT, "messages", PART),
        ("/tokenize", "messages", PART),
        ("/v1/messages", "messages", BLOCK),
        ("/v1/messages/count_tokens", "messages", BLOCK),
        ("/v1/responses", "input", {"type": "input_image", "image_url": PICTURE, "detail": "auto"}),
        ("/v1/responses/input_tokens", "input", {"type": "input_image", "image_url": PICTURE, "detail": "auto"}),
    ],
)
async def test_media_over_the_bound_are_refused_in_each_dialect(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str, field: str, part: dict[str, Any]
) -> None:
    """With this model's application, told that it reads images, up to where vLLM's reader has read the image."""
    from vllm.config import ModelConfig
    from vllm.renderers.chat_utils import AsyncMultiModalItemTracker

    def add(self: Any, modality: str, item: Any) -> str:
        self._items_by_modality[modality].append(item)
        return "<image>"

    monkeypatch.setattr(AsyncMultiModalItemTracker, "add", add)
    monkeypatch.setattr(ModelConfig, "is_multimodal_model", True)
    monkeypatch.setattr(bench.engine, "_bounds", Bounds(media_bytes=2 * 3 * 100 * 50))
    body = {field: [{"role": "user", "content": [part, part]}]}
    with pytest.raises(BadRequest) as refused:
        await bench.ask(path, {**body, "max_tokens": 2} if path == "/v1/messages" else body)
    assert (refused.value.code, refused.value.param) == ("media_too_large", field)
    assert bench.unfinished() == 0


async def test_other_paths_are_refused(bench: Bench) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models", "/metrics", "/sleep"):
        with pytest.raises(NotFound):
            await bench.ask(path, {})


async def test_the_engine_still_answers_after_all_of_them(bench: Bench) -> None:
    await bench.engine.ping()
    assert bench.unfinished() == 0
    prompt, answer = await bench.greedy("and at the end", None)
    assert bench.oracle.agrees(None, prompt, answer)
