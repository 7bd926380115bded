"""The memory that images, sounds and videos of a request may take, and settings that enlarge them."""

import json
import threading
from typing import Any

import pytest

from models.chat.requests import media
from models.chat.requests.request import ChatRequest
from registry.bounds import Bounds
from registry.errors import BadRequest

BOUNDS = Bounds(media_bytes=3_000_000)


def budget(path: str = "/v1/chat/completions", **body: Any) -> media.MediaBudget:
    return media.budget(ChatRequest(path, json.dumps(body).encode()), BOUNDS)


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/chat/completions", "messages"), ("/v1/responses", "input"), ("/v1/messages", "messages")]
)
def test_all_media_together_are_bounded(path: str, field: str) -> None:
    left = budget(path)
    left.take_images(500_000)
    left.take_images(25_000, 10)
    left.take(750_000)
    with pytest.raises(BadRequest, match=r"more than 2\.9 MiB together") as refused:
        left.take(1)
    assert (refused.value.code, refused.value.param) == ("media_too_large", field)


def test_nothing_more_is_read_of_a_request_with_too_much() -> None:
    left = budget()
    for count in (3_000_001, 1):
        with pytest.raises(BadRequest, match="together"):
            left.take(count)


def test_threads_share_a_budget() -> None:
    left, refused = budget(), list[BadRequest]()

    def take() -> None:
        for _ in range(1000):
            try:
                left.take(1000)
            except BadRequest as error:
                refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1000


def test_a_setting_that_enlarges_images_counts_for_each() -> None:
    left = budget(mm_processor_kwargs={"min_pixels": 500_000})
    left.take_images(1)
    left.take_images(1)
    with pytest.raises(BadRequest, match="together"):
        left.take_images(1)


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_pixels": 1_000_000}, {"min_pixels": 1_000_000}, {"do_pan_and_scan": True, "use_audio_in_video": None}],
)
def test_settings_that_are_bounded_are_passed_on(settings: dict[str, Any]) -> None:
    budget(mm_processor_kwargs=settings)
    budget(media_io_kwargs={"image": {"image_mode": "RGB"}, "video": {}})


@pytest.mark.parametrize(
    "settings",
    [
        {"max_pixels": 1_000_001},
        {"min_pixels": 1_000_001},
        {"min_pixels": 1e12},
        {"min_pixels": -1},
        {"size": {"height": 100_000, "width": 100_000}},
        {"num_frames": 100_000},
        {"device": "cuda"},
    ],
)
def test_settings_that_need_any_amount_of_memory_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        budget(mm_processor_kwargs=settings)
    assert (refused.value.code, refused.value.param) == (
        "unsupported_value",
        f"mm_processor_kwargs.{next(iter(settings))}",
    )


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"video": {"num_frames": -1}}, "video.num_frames"), ({"image": {"x": 1}}, "image.x"), ({"y": {"z": 1}}, "y.z")],
)
def test_settings_of_decoding_are_the_recipes(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(BadRequest, match="only the model's recipe") as refused:
        budget(media_io_kwargs=settings)
    assert refused.value.param == f"media_io_kwargs.{name}"
